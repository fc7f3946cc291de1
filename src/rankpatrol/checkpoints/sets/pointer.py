"""A pointer inside a checkpoint: a trainer that saves through DeepSpeed leaves `latest` beside the one folder that it names."""

from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.report import corrupt, lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "deepspeed"
_POINTER: Final = "latest"
_MOST_BYTES: Final = 4096


def matches(view: SetView) -> bool:
    """The pointer's name, in a directory that is a checkpoint itself."""
    return _POINTER in view.sizes


def check(view: SetView) -> Iterator[Problem]:
    """It names a folder beside it."""
    text = view.text(_POINTER, _MOST_BYTES).strip()
    if not text or not text.isprintable() or "/" in text:
        yield view.problem(_POINTER, corrupt("names no folder"))
    elif text not in view.folders:
        yield view.problem(_POINTER, lacking(f"names {text}, which is not there"))
