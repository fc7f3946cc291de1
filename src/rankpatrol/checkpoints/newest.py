"""The newest good checkpoint of a directory."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rankpatrol.checkpoints.opened import explain, printable
from rankpatrol.checkpoints.report import CheckpointCause, CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.steps import called_step, step_in_directory_name, step_in_file_name
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record

SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin"})


class CandidateFile(Record, frozen=True):
    """One file by a checkpoint's name, as it was listed."""

    path: Path
    size_bytes: int
    modified_unix_s: float


class Candidate(Record, frozen=True):
    """One checkpoint: a file, or all checkpoint files of a sub-directory whose name tells their step."""

    files: tuple[CandidateFile, ...]
    step: int | None

    @property
    def modified_unix_s(self) -> float:
        return max(file.modified_unix_s for file in self.files)


class Listing(Record, frozen=True):
    """The checkpoints of a directory, newest first, and what could not be looked at."""

    candidates: tuple[Candidate, ...]
    unreadable: tuple[CheckpointReport, ...]


def newest_good(directory: Path, verifier: Verifier) -> Selection:
    """Read checkpoints from the newest down until one is good. Raises BadInput or NoPermission where the directory cannot be listed."""
    listing = list_checkpoints(directory)
    rejected = list(listing.unreadable)
    for position, candidate in enumerate(listing.candidates):
        reports = judge(candidate, verifier)
        bad = [report for report in reports if report.verdict is not CheckpointVerdict.OK]
        if bad:
            rejected += bad
            continue
        older = tuple(printable(file.path) for later in listing.candidates[position + 1 :] for file in later.files)
        return Selection(
            directory=printable(directory), newest_good=reports[0], beside=tuple(reports[1:]), rejected=tuple(rejected), older=older
        )
    return Selection(directory=printable(directory), newest_good=None, rejected=tuple(rejected))


def judge(candidate: Candidate, verifier: Verifier) -> list[CheckpointReport]:
    """A report for each file of a candidate; one that vanished or may not be read is unknown, with the reason."""
    reports = []
    for file in candidate.files:
        try:
            report = verifier.verify(file.path)
        except PatrolError as problem:
            report = _unreadable(file, str(problem))
        reports.append(msgspec.structs.replace(report, step=candidate.step))
    return reports


def list_checkpoints(directory: Path) -> Listing:
    """The checkpoint files of a directory and of the directories in it, newest first; temporary names are left out."""
    entries, unreadable = _entries(directory)
    candidates = [Candidate((file,), step_in_file_name(file.path.stem)) for file in entries if file.path.parent == directory]
    nested: dict[Path, list[CandidateFile]] = {}
    for file in entries:
        if file.path.parent != directory:
            nested.setdefault(file.path.parent, []).append(file)
    for parent, files in nested.items():
        candidates += _from_sub_directory(parent, files)
    return Listing(tuple(newest_first(candidates)), tuple(unreadable))


def newest_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """By step where names tell it; one without a step goes before the first whose last write is older than its own."""
    stepped = sorted((c for c in candidates if c.step is not None), key=lambda c: (c.step or 0, c.modified_unix_s), reverse=True)
    others = sorted((c for c in candidates if c.step is None), key=lambda c: c.modified_unix_s, reverse=True)
    ordered: list[Candidate] = []
    for candidate in stepped:
        while others and others[0].modified_unix_s > candidate.modified_unix_s:
            ordered.append(others.pop(0))
        ordered.append(candidate)
    return ordered + others


def _from_sub_directory(parent: Path, files: list[CandidateFile]) -> list[Candidate]:
    """Files that share their directory's step make one checkpoint: half of it is no good. Those that call their own step stand alone."""
    step = step_in_directory_name(parent.name)
    alone = [file for file in files if step is None or called_step(file.path.stem) is not None]
    together = tuple(file for file in files if file not in alone)
    return [Candidate((file,), step_in_file_name(file.path.stem)) for file in alone] + ([Candidate(together, step)] if together else [])


def _entries(directory: Path) -> tuple[list[CandidateFile], list[CheckpointReport]]:
    try:
        top = sorted(directory.iterdir())
    except OSError as problem:
        raise explain(directory, problem) from problem
    found: list[CandidateFile] = []
    unreadable: list[CheckpointReport] = []
    # Links last: `latest.pt` shall not stand for the file that it leads to.
    seen: set[tuple[int, int]] = set()
    for path in sorted((p for p in top if not _temporary(p)), key=os.path.islink):
        try:
            is_directory = path.is_dir()
            inside = sorted(p for p in path.iterdir() if not _temporary(p)) if is_directory else [path]
        except OSError as problem:
            unreadable.append(_unreadable(CandidateFile(path, 0, 0.0), str(explain(path, problem))))
            continue
        for one in inside:
            if one.suffix in SUFFIXES:
                _add(one, found, unreadable, seen)
    return found, unreadable


def _add(path: Path, found: list[CandidateFile], unreadable: list[CheckpointReport], seen: set[tuple[int, int]]) -> None:
    try:
        status = path.stat()
    except OSError as problem:
        unreadable.append(_unreadable(CandidateFile(path, 0, 0.0), str(explain(path, problem))))
        return
    if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
        seen.add((status.st_dev, status.st_ino))
        found.append(CandidateFile(path, status.st_size, status.st_mtime))


def _temporary(path: Path) -> bool:
    return path.name.startswith(".") or ".tmp" in path.name


def _unreadable(file: CandidateFile, said: str) -> CheckpointReport:
    return CheckpointReport(
        path=printable(file.path),
        layout="unknown",
        verdict=CheckpointVerdict.UNKNOWN,
        cause=CheckpointCause.UNKNOWN,
        sentence=f"{printable(Path(file.path.name))} was not checked: {said}",
        file=printable(file.path),
        size_bytes=file.size_bytes,
        modified_unix_s=file.modified_unix_s,
    )
