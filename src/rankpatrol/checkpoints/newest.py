"""The newest good checkpoint of a directory."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rankpatrol.checkpoints.opened import explain, one_line, printable
from rankpatrol.checkpoints.plausible import oddity
from rankpatrol.checkpoints.pointers import wrong_pointers
from rankpatrol.checkpoints.report import CheckpointCause, CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.set_verifier import SetVerifier
from rankpatrol.checkpoints.sets.dcp_steps import left_over
from rankpatrol.checkpoints.sets.ranked import missing_ranks, rank_families
from rankpatrol.checkpoints.sets.registry import set_tree
from rankpatrol.checkpoints.sets.view import temporary
from rankpatrol.checkpoints.steps import called_step, step_in_directory_name, step_in_file_name
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record

SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors"})
# The trainer's settings beside its checkpoints are none.
_NOT_ALONE = frozenset({"training_args.bin"})


class CandidateFile(Record, frozen=True):
    """One file by a checkpoint's name, as it was listed."""

    path: Path
    size_bytes: int
    modified_unix_s: float


class Candidate(Record, frozen=True):
    """One checkpoint: a file, all checkpoint files of a sub-directory whose name tells their step, or a directory in a known layout."""

    files: tuple[CandidateFile, ...]
    step: int | None
    directory: Path | None = None

    @property
    def modified_unix_s(self) -> float:
        return max((file.modified_unix_s for file in self.files), default=0.0)

    @property
    def path(self) -> Path:
        """The directory of a set, else its first file."""
        return self.directory or self.files[0].path


class Listing(Record, frozen=True):
    """The checkpoints of a directory, newest first, and what could not be looked at."""

    candidates: tuple[Candidate, ...]
    unreadable: tuple[CheckpointReport, ...]


def newest_good(directory: Path, verifier: Verifier, *, at_once: int = 1) -> Selection:
    """Read checkpoints from the newest down until one is good. Raises BadInput or NoPermission where the directory cannot be listed."""
    listing = list_checkpoints(directory)
    rejected = list(listing.unreadable)
    selection = Selection(directory=printable(directory), newest_good=None, rejected=tuple(rejected))
    for position, candidate in enumerate(listing.candidates):
        reports = judge(candidate, verifier, at_once=at_once, older=listing.candidates[position + 1 :])
        bad = [report for report in reports if report.verdict is not CheckpointVerdict.OK]
        rejected += bad
        if not bad:
            older = tuple(path for later in listing.candidates[position + 1 :] for path in _paths(later))
            selection = msgspec.structs.replace(selection, newest_good=reports[0], beside=tuple(reports[1:]), older=older)
            break
    selection = msgspec.structs.replace(selection, rejected=tuple(rejected), lost_steps=_lost_steps(selection.newest_good, rejected))
    return msgspec.structs.replace(selection, pointers=tuple(wrong_pointers(directory, selection, verifier.now_unix_s())))


def _lost_steps(good: CheckpointReport | None, rejected: list[CheckpointReport]) -> int | None:
    """How many steps the newest damaged checkpoint was ahead of the good one; what may be none at all has lost nothing."""
    damaged = (report for report in rejected if report.verdict is not CheckpointVerdict.UNKNOWN)
    ahead = max((report.step for report in damaged if report.step is not None), default=None)
    if good is None or good.step is None or ahead is None:
        return None
    return max(0, ahead - good.step)


def _paths(candidate: Candidate) -> list[str]:
    return [printable(candidate.directory)] if candidate.directory else [printable(file.path) for file in candidate.files]


def judge(candidate: Candidate, verifier: Verifier, *, at_once: int = 1, older: Sequence[Candidate] = ()) -> list[CheckpointReport]:
    """A report for each file of a candidate, or one on all of it where it is a set; what vanished or may not be read is unknown.

    A set is compared with the `older` ones beside it, the newest of them first.
    """
    if candidate.directory is not None:
        report = _judge_set(candidate.directory, candidate, verifier, at_once)
        return [_with_left_over(_beside_older(report, candidate, older), candidate.directory, older)]
    reports = []
    for file in candidate.files:
        try:
            report = verifier.verify(file.path)
        except PatrolError as problem:
            report = _unreadable(file, str(problem))
        reports.append(msgspec.structs.replace(report, step=candidate.step))
    return reports + [_lacking_rank(candidate, name) for name in missing_ranks([file.path.name for file in candidate.files])]


def _judge_set(directory: Path, candidate: Candidate, verifier: Verifier, at_once: int) -> CheckpointReport:
    try:
        report = SetVerifier(verifier, at_once=at_once).verify(directory)
    except PatrolError as problem:
        report = _unreadable(CandidateFile(directory, 0, candidate.modified_unix_s), str(problem))
    return report if candidate.step is None else msgspec.structs.replace(report, step=candidate.step)


def _beside_older(report: CheckpointReport, candidate: Candidate, older: Sequence[Candidate]) -> CheckpointReport:
    found = oddity(_sizes(candidate), [_sizes(one) for one in older if one.directory is not None])
    if report.verdict is not CheckpointVerdict.OK or found is None or candidate.directory is None:
        return report
    name, said = found
    return msgspec.structs.replace(
        report,
        verdict=CheckpointVerdict.UNKNOWN,
        cause=CheckpointCause.UNKNOWN,
        sentence=f"{printable(Path(candidate.directory.name))} may lack something: {name} {said}",
        file=printable(candidate.directory / name),
    )


def _with_left_over(report: CheckpointReport, directory: Path, older: Sequence[Candidate]) -> CheckpointReport:
    """A doubt that an older checkpoint turns into a certainty."""
    doubted = report.verdict is CheckpointVerdict.OK and report.more
    found = left_over(directory, [one.directory for one in older if one.directory is not None]) if doubted else None
    if found is None:
        return report
    shard, other = found
    said = f"{shard.shard} is not of this save: it is byte by byte that of {other.name}, its optimizer at step {shard.step}"
    return msgspec.structs.replace(
        report,
        verdict=CheckpointVerdict.INCOMPLETE,
        cause=CheckpointCause.INCOMPLETE_SET,
        sentence=one_line(f"{printable(Path(directory.name))} is mixed of several saves: {said}"),
        file=printable(directory / shard.shard),
        content_verified=False,
        more=(),
    )


def _sizes(candidate: Candidate) -> dict[str, int]:
    """Sizes by the path within the set; a folder named for its step bears another name in each."""
    named = {} if candidate.directory is None else {file.path.relative_to(candidate.directory): file for file in candidate.files}
    return {
        "/".join(_stepless(part) for part in path.parent.parts) + "/" * bool(path.parent.parts) + path.name: file.size_bytes
        for path, file in named.items()
    }


def _stepless(folder: str) -> str:
    return folder if step_in_directory_name(folder) is None else "step"


def _lacking_rank(candidate: Candidate, name: str) -> CheckpointReport:
    path = candidate.files[0].path.with_name(name)
    return CheckpointReport(
        path=printable(path),
        layout="ranked",
        verdict=CheckpointVerdict.INCOMPLETE,
        cause=CheckpointCause.INCOMPLETE_SET,
        sentence=f"{printable(Path(name))} is not there, though the other ranks' files of its step are",
        file=printable(path),
        step=candidate.step,
        size_bytes=0,
        modified_unix_s=candidate.modified_unix_s,
    )


def list_checkpoints(directory: Path) -> Listing:
    """The checkpoint files of a directory and of the directories in it, newest first; temporary names are left out."""
    entries, sets, unreadable = _entries(directory)
    # Beside whole checkpoints, weights alone are a model to use, not one to resume from.
    flat = [file for file in entries if file.path.parent == directory and not (sets and file.path.suffix == ".safetensors")]
    candidates = sets + _of_ranks(flat)
    taken = {file.path for candidate in candidates for file in candidate.files}
    candidates += [Candidate((file,), step_in_file_name(file.path.stem)) for file in flat if file.path not in taken]
    nested: dict[Path, list[CandidateFile]] = {}
    for file in entries:
        if file.path.parent != directory:
            nested.setdefault(file.path.parent, []).append(file)
    for parent, files in nested.items():
        candidates += _from_sub_directory(parent, files)
    return Listing(tuple(newest_first(candidates)), tuple(unreadable))


def as_candidate(directory: Path) -> Candidate | None:
    """A directory that is itself one checkpoint, in a known layout; None where it is not."""
    tree = set_tree(directory)
    if tree is None:
        return None
    files = tuple(CandidateFile(path, status.st_size, status.st_mtime) for path, status in tree.files.items())
    return Candidate(files, step_in_directory_name(directory.name), directory)


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


def _of_ranks(files: list[CandidateFile]) -> list[Candidate]:
    """Files of one step that differ in their rank make one checkpoint."""
    by_name = {file.path.name: file for file in files}
    together: dict[int, list[CandidateFile]] = {}
    for names in rank_families(list(by_name)):
        step = called_step(Path(names[0]).stem)
        if step is not None:
            together.setdefault(step, []).extend(by_name[name] for name in names)
    return [Candidate(tuple(files), step) for step, files in together.items()]


def _from_sub_directory(parent: Path, files: list[CandidateFile]) -> list[Candidate]:
    """Files that share their directory's step make one checkpoint: half of it is no good. Those that call their own step stand alone."""
    step = step_in_directory_name(parent.name)
    alone = [file for file in files if step is None or called_step(file.path.stem) is not None]
    together = tuple(file for file in files if file not in alone)
    return [Candidate((file,), step_in_file_name(file.path.stem)) for file in alone] + ([Candidate(together, step)] if together else [])


def _entries(directory: Path) -> tuple[list[CandidateFile], list[Candidate], list[CheckpointReport]]:
    try:
        top = sorted(directory.iterdir())
    except OSError as problem:
        raise explain(directory, problem) from problem
    found: list[CandidateFile] = []
    sets: list[Candidate] = []
    unreadable: list[CheckpointReport] = []
    # Links last: `latest.pt` shall not stand for the file that it leads to.
    seen: set[tuple[int, int]] = set()
    for path in sorted((p for p in top if not temporary(p)), key=os.path.islink):
        try:
            is_directory = path.is_dir()
            if is_directory and path.is_symlink() and _leads_beside(path):
                continue  # a link to a checkpoint beside it says nothing new
            if is_directory and (candidate := as_candidate(path)) is not None:
                sets.append(candidate)
                continue
            inside = sorted(p for p in path.iterdir() if not temporary(p)) if is_directory else [path]
        except OSError as problem:
            unreadable.append(_unreadable(CandidateFile(path, 0, 0.0), str(explain(path, problem))))
            continue
        for one in inside:
            if one.suffix in SUFFIXES and not (one.parent == directory and one.name in _NOT_ALONE):
                _add(one, found, unreadable, seen)
    return found, sets, unreadable


def _leads_beside(link: Path) -> bool:
    """Whether a link leads to an entry of the directory that it is in."""
    return Path(os.path.normpath(link.parent / link.readlink())).parent == Path(os.path.normpath(link.parent))


def _add(path: Path, found: list[CandidateFile], unreadable: list[CheckpointReport], seen: set[tuple[int, int]]) -> None:
    try:
        status = path.stat()
    except OSError as problem:
        unreadable.append(_unreadable(CandidateFile(path, 0, 0.0), str(explain(path, problem))))
        return
    if stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
        seen.add((status.st_dev, status.st_ino))
        found.append(CandidateFile(path, status.st_size, status.st_mtime))


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
