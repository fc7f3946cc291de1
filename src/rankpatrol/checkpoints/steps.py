"""The training step that a checkpoint's name tells."""

import re
from pathlib import Path

# Longer runs of digits are dates or hashes, and no step.
_CALLED_STEP = re.compile(
    r"(?:step|iter|iteration)s?[-_=. ]{0,2}(\d{1,15})(?!\d)|(?<!\d)(\d{1,15})[-_]?(?:steps?|iters?)(?![a-z0-9]|[-_=. ]{1,2}\d)",
    re.IGNORECASE,
)
_CALLED_CHECKPOINT = re.compile(r"(?:checkpoint|ckpt)s?[-_=. ]{0,2}(\d{1,15})(?!\d)", re.IGNORECASE)
_ANY_NUMBER = re.compile(r"(?<!\d)(\d{1,15})(?!\d)")


def step_of(path: Path) -> int | None:
    """The step a file's name calls so, else the one its directory's name tells, else the last number in the file's name."""
    for step in (called_step(path.stem), step_in_directory_name(path.parent.name), step_in_file_name(path.stem)):
        if step is not None:
            return step
    return None


def step_in_file_name(stem: str) -> int | None:
    """The last number called a step, else the last number: 40 in `epoch3_step40`, 120 in `checkpoint-120`."""
    called = called_step(stem)
    return _last(_ANY_NUMBER, stem) if called is None else called


def step_in_directory_name(name: str) -> int | None:
    """The number called a step or checkpoint: a directory's other numbers are dates, runs and sizes."""
    called = called_step(name)
    return _last(_CALLED_CHECKPOINT, name) if called is None else called


def called_step(name: str) -> int | None:
    """The last number that is called a step or iteration."""
    return _last(_CALLED_STEP, name)


def _last(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.findall(name)
    if not found:
        return None
    last = found[-1]
    return int(last if isinstance(last, str) else last[0] or last[1])
