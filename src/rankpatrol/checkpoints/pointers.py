"""Files and links that name the checkpoint to load: what they name, whether that is right, and how they are put right."""

import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rankpatrol.checkpoints.opened import OpenedFile, printable
from rankpatrol.checkpoints.report import CheckpointCause, CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.steps import step_of
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.system.files import write_atomic

_MOST_BYTES: Final = 4096
# A job writes its pointer right after the last file: so long it may take on a slow file system.
_POINTER_DUE_S: Final = 60.0
_LINK: Final = re.compile(r"(?:latest|last)(?:\.(?:pt|pth|ckpt|bin|safetensors))?")


class Form(Record, frozen=True):
    """A pointer file: its name, the folder that its text names, and the text that names a folder (None: it cannot)."""

    name: str
    folder_of: Callable[[str], str]
    text_of: Callable[[str], str | None]


FORMS: Final = (
    # deepspeed/runtime/engine.py, save_checkpoint
    Form("latest", lambda text: text, lambda folder: folder),
    # megatron/training/checkpointing.py, get_checkpoint_tracker_filename
    Form(
        "latest_checkpointed_iteration.txt",
        lambda text: f"iter_{int(text):07d}" if text.isascii() and text.isdigit() else text,
        lambda folder: str(int(folder.removeprefix("iter_"))) if folder.removeprefix("iter_").isdigit() else None,
    ),
)


class Pointer(Record, frozen=True):
    """One pointer: where it is, the path it names (None: nothing), and how it is written (None: a link)."""

    path: Path
    names: Path | None
    form: Form | None


class Repair(Record, frozen=True, kw_only=True):
    """What will be, or was, done to one pointer."""

    pointer: str
    was: str
    becomes: str
    kept_as: str


def read_pointers(directory: Path) -> list[Pointer]:
    """All pointers of a directory."""
    found = [Pointer(path, _named(path, form), form) for form in FORMS if (path := directory / form.name).is_file()]
    found = [pointer for pointer in found if not pointer.path.is_symlink()]
    for path in sorted(directory.iterdir()):
        if path.is_symlink() and _LINK.fullmatch(path.name):
            target = directory / path.readlink()
            found.append(Pointer(path, target if target.parent == directory else None, None))
    return found


def wrong_pointers(directory: Path, selection: Selection, now_unix_s: float) -> list[CheckpointReport]:
    """The pointers that lead to nothing, to a bad checkpoint, or past the newest good one."""
    reports = []
    for pointer in read_pointers(directory):
        said = _wrong(pointer, selection, now_unix_s)
        if said is not None:
            reports.append(_report(pointer, *said))
    return reports


def _wrong(pointer: Pointer, selection: Selection, now_unix_s: float) -> tuple[CheckpointVerdict, str] | None:
    if pointer.names is None:
        return CheckpointVerdict.CORRUPT, "names no checkpoint of its directory"
    name = printable(Path(pointer.names.name))
    if not os.path.lexists(pointer.names):
        return CheckpointVerdict.INCOMPLETE, f"names {name}, which is not there"
    path = printable(pointer.names)
    bad = [report for report in selection.rejected if path in {report.path, str(Path(report.path).parent)}]
    if bad:
        return CheckpointVerdict.INCOMPLETE, f"names {name}, which is {bad[0].verdict}"
    good = selection.newest_good
    if good is None or path in {good.path, str(Path(good.path).parent)} or path not in selection.older:
        return None
    if now_unix_s - good.modified_unix_s < _POINTER_DUE_S:
        return None
    named, newest = step_of(pointer.names / "x"), good.step
    lost = f": {say_count(newest - named, 'step')} would be lost" if named is not None and newest is not None else ""
    return CheckpointVerdict.INCOMPLETE, f"names {name}, though {Path(good.path).name} is newer and whole{lost}"


def repairs(directory: Path, selection: Selection, now_unix_s: float) -> list[Repair]:
    """What would put every wrong pointer right: nothing where no checkpoint is good, or where its form cannot name it."""
    good = selection.newest_good
    if good is None:
        return []
    wrong = {report.path for report in wrong_pointers(directory, selection, now_unix_s)}
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_unix_s))
    planned = []
    for pointer in read_pointers(directory):
        becomes = _text_for(pointer, directory, Path(good.path))
        if printable(pointer.path) in wrong and becomes is not None:
            kept = pointer.path.with_name(f"{pointer.path.name}.before-{stamp}")
            planned.append(Repair(pointer=str(pointer.path), was=_raw(pointer.path), becomes=becomes, kept_as=str(kept)))
    return planned


def left_alone(directory: Path, selection: Selection, now_unix_s: float) -> list[str]:
    """Of each wrong pointer that cannot be put right: why, and what to do instead. Nothing where no checkpoint is good."""
    good = selection.newest_good
    if good is None:
        return []
    wrong = {report.path for report in wrong_pointers(directory, selection, now_unix_s)}
    beside = Path(good.path).relative_to(directory)
    return [
        f"{printable(pointer.path)} is left as it is: {_why_not(pointer, directory, beside)}"
        for pointer in read_pointers(directory)
        if printable(pointer.path) in wrong and _text_for(pointer, directory, Path(good.path)) is None
    ]


def _why_not(pointer: Pointer, directory: Path, beside: Path) -> str:
    name, path = printable(beside), shlex.quote(str(pointer.path))
    if pointer.form is None:
        return f"a link of this name does not lead to {name}. If yours shall: ln -sfn {shlex.quote(str(beside))} {path}"
    if (directory / beside.parts[0]).is_dir():
        return f"it tells an iteration, and the name {beside.parts[0]} tells none. Write what your script reads there: {path}"
    command = f"printf %s {shlex.quote(str(beside))} > {path}"
    return (
        f"by its form it names a folder, and the newest good checkpoint is the file {name}. If your script reads a file's name: {command}"
    )


def put_right(repair: Repair) -> None:
    """Keep a copy, then change the pointer in one step. Raises OSError; the pointer is then as it was."""
    pointer, kept = Path(repair.pointer), Path(repair.kept_as)
    if pointer.is_symlink():
        kept.symlink_to(pointer.readlink())
        fresh = pointer.with_name(f".{pointer.name}.{os.getpid()}.tmp")
        fresh.symlink_to(repair.becomes)
        fresh.replace(pointer)
        return
    write_atomic(kept, pointer.read_bytes(), durable=True)
    write_atomic(pointer, repair.becomes.encode(), durable=True)


def _text_for(pointer: Pointer, directory: Path, good: Path) -> str | None:
    """What the pointer must say, in its own form, to name a checkpoint."""
    beside = good.relative_to(directory)
    if pointer.form is None:
        if len(beside.parts) == 1 and good.is_dir() == (pointer.path.suffix == ""):
            return beside.name
        return None
    return pointer.form.text_of(beside.parts[0]) if (directory / beside.parts[0]).is_dir() else None


def _named(path: Path, form: Form) -> Path | None:
    text = _raw(path).strip()
    if not text or "/" in text or "\0" in text or text in {".", ".."} or not text.isprintable():
        return None
    return path.parent / form.folder_of(text)


def _raw(path: Path) -> str:
    if path.is_symlink():
        return str(path.readlink())
    try:
        with OpenedFile(path) as file:
            return file.read_at(0, min(file.size_bytes, _MOST_BYTES)).decode("utf-8", "backslashreplace")
    except (OSError, PatrolError):
        return ""


def _report(pointer: Pointer, verdict: CheckpointVerdict, said: str) -> CheckpointReport:
    status = pointer.path.lstat()
    return CheckpointReport(
        path=printable(pointer.path),
        layout="pointer",
        verdict=verdict,
        cause=CheckpointCause.INCOMPLETE_SET if verdict is CheckpointVerdict.INCOMPLETE else CheckpointCause.UNKNOWN,
        sentence=f"{pointer.path.name} {said}",
        file=printable(pointer.path),
        size_bytes=status.st_size,
        modified_unix_s=status.st_mtime,
    )
