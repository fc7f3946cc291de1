"""A directory under check, as the layouts of sets see it."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from rankpatrol.checkpoints.opened import OpenedFile, explain
from rankpatrol.checkpoints.report import Judgement
from rankpatrol.checkpoints.torch_inside import TorchInside, inside_of
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record

_DEEPEST: Final = 3
_MOST_JSON_BYTES: Final = 128 << 20


class Problem(Record, frozen=True):
    """What is wrong with a set, and the path that it is about."""

    path: Path
    judgement: Judgement


class SetView:
    """One folder of a checkpoint: its names, and what its small files say. `root` is the whole checkpoint, last written `age_s` ago."""

    def __init__(self, root: Path, folder: Path, tree: "Tree", now_unix_s: float) -> None:
        self.root, self.folder = root, folder
        self.sizes = {path.name: status.st_size for path, status in tree.files.items() if path.parent == folder}
        self.folders = frozenset(path.name for path in tree.folders if path.parent == folder and path != folder)
        self.age_s = now_unix_s - max((status.st_mtime for status in tree.files.values()), default=0.0)
        self._inside: dict[str, TorchInside | None] = {}

    def step_by(self, form: re.Pattern[str]) -> int | None:
        """The step of this folder's name, else of the checkpoint's, where that is in the form that the library itself gives."""
        for folder in (self.folder, self.root):
            match = form.fullmatch(folder.name)
            if match is not None:
                return int(match[1])
        return None

    def named(self, pattern: re.Pattern[str]) -> dict[str, re.Match[str]]:
        """The files whose whole name fits a pattern."""
        return {name: match for name in sorted(self.sizes) if (match := pattern.fullmatch(name))}

    def inside(self, name: str) -> TorchInside | None:
        """What a torch file says; None where it cannot be read (its own report says why)."""
        if name not in self._inside:
            self._inside[name] = _inside(self.folder / name)
        return self._inside[name]

    def json(self, name: str) -> Any:
        """The value of a JSON file; None where it cannot be read."""
        try:
            with OpenedFile(self.folder / name) as file:
                return json.loads(file.read_at(0, min(file.size_bytes, _MOST_JSON_BYTES)))
        except (OSError, PatrolError, ValueError, RecursionError):
            return None

    def text(self, name: str, most_bytes: int) -> str:
        """The start of a file as text; "" where it cannot be read."""
        try:
            with OpenedFile(self.folder / name) as file:
                return file.read_at(0, min(file.size_bytes, most_bytes)).decode("utf-8", "backslashreplace")
        except (OSError, PatrolError):
            return ""

    def problem(self, name: str, judgement: Judgement) -> Problem:
        """A problem with one of its files, which need not be there."""
        return Problem(self.folder / name, judgement)


class SetLayout(Protocol):
    """A module that knows one kind of set."""

    NAME: str

    def matches(self, view: SetView, /) -> bool:
        """Whether a folder holds one."""
        ...

    def check(self, view: SetView, /) -> Iterator[Problem]:
        """What is wrong with it beyond its single files."""
        ...


class Tree(Record, frozen=True):
    """Every file of a checkpoint with its size and time, and its folders, the checkpoint itself first."""

    files: dict[Path, os.stat_result]
    folders: tuple[Path, ...]


def read_tree(root: Path) -> Tree:
    """Files and folders to a depth of three, without links that lead out and names of unfinished files. Raises BadInput or NoPermission."""
    files: dict[Path, os.stat_result] = {}
    folders: list[Path] = []
    _read(root, _DEEPEST, files, folders)
    return Tree(files, tuple(folders))


def _read(folder: Path, deeper: int, files: dict[Path, os.stat_result], folders: list[Path]) -> None:
    try:
        entries = sorted(folder.iterdir())
    except OSError as problem:
        raise explain(folder, problem) from problem
    folders.append(folder)
    for path in entries:
        if temporary(path):
            continue
        try:
            status = path.stat()
        except OSError:
            continue  # a link to nothing, or removed meanwhile
        if stat.S_ISREG(status.st_mode):
            files[path] = status
        elif stat.S_ISDIR(status.st_mode) and deeper and not path.is_symlink():
            _read(path, deeper - 1, files, folders)


def temporary(path: Path) -> bool:
    """Whether the name is that of something unfinished or set aside; DCP's `.metadata` is the exception among hidden names."""
    return (path.name.startswith(".") and path.name != ".metadata") or ".tmp" in path.name or ".quarantined" in path.name


def views(root: Path, tree: Tree, now_unix_s: float) -> list[SetView]:
    """One view a folder of the checkpoint."""
    return [SetView(root, folder, tree, now_unix_s) for folder in tree.folders]


def _inside(path: Path) -> TorchInside | None:
    try:
        # The file is closed before anybody asks for a tensor's number, so that is read here.
        with OpenedFile(path) as file:
            inside = inside_of(file)
            if inside is not None:
                inside.learn_optimizer_step()
            return inside
    except (OSError, PatrolError):
        return None
