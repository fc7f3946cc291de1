"""A checkpoint that is a directory, judged as a whole: each file by its own layout, then what only all of them together can tell."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from rankpatrol.checkpoints.dcp_metadata import is_metadata
from rankpatrol.checkpoints.ledger import Identity
from rankpatrol.checkpoints.opened import OpenedFile, one_line, printable
from rankpatrol.checkpoints.report import STILL_WRITING_S, CheckpointCause, CheckpointReport, CheckpointVerdict, say_since
from rankpatrol.checkpoints.sets.registry import layouts_of
from rankpatrol.checkpoints.sets.view import Problem, Tree, read_tree, views
from rankpatrol.checkpoints.steps import step_in_directory_name
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import PatrolError

# The worst first: what is damaged will not become whole, what is not finished may.
_WORST: Final = (CheckpointVerdict.CORRUPT, CheckpointVerdict.INCOMPLETE, CheckpointVerdict.UNKNOWN)
_MOST_TOLD: Final = 20
# What must be a checkpoint's file by its name; whatever else lies in a set (tokenizers, scripts) is taken as it is.
JUDGED: Final = frozenset({".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp", ".json", ".pkl"})


class SetVerifier:
    """Judges directories with one Verifier, several files at once."""

    def __init__(self, verifier: Verifier, *, at_once: int = 1) -> None:
        self.verifier, self._at_once = verifier, at_once

    def verify(self, directory: Path) -> CheckpointReport:
        """One report on a whole checkpoint. Raises BadInput or NoPermission where it cannot be listed."""
        tree = read_tree(directory)
        identity = _identity(tree)
        known = self.verifier.ledger.known(directory)
        if known is not None and known.identity == identity and self.verifier.fresh(known):
            return known.report
        files = self._files(tree)
        layouts, problems = _together(directory, tree, self.verifier.now_unix_s())
        doubts = [problem for problem in problems if problem.verdict is CheckpointVerdict.OK]
        certain = [problem for problem in problems if problem.verdict is not CheckpointVerdict.OK]
        report = _doubted(_report(directory, tree, layouts, [*files, *certain], self.verifier.now_unix_s()), doubts)
        settled = {CheckpointVerdict.OK, CheckpointVerdict.CORRUPT}
        if report.verdict in settled and _identity(read_tree(directory)) == identity:
            self.verifier.learn(directory, identity, report)
        return report

    def _files(self, tree: Tree) -> list[CheckpointReport]:
        with ThreadPoolExecutor(self._at_once, thread_name_prefix="checkpoint") as pool:
            return list(pool.map(self._file, tree.files))

    def _file(self, path: Path) -> CheckpointReport:
        try:
            return self.verifier.verify(path, beside=path.suffix not in JUDGED and not is_metadata(path.name))
        except PatrolError as problem:
            return unreadable(path, str(problem))


def unreadable(path: Path, said: str) -> CheckpointReport:
    """A file that could not be looked at."""
    return CheckpointReport(
        path=printable(path),
        layout="unknown",
        verdict=CheckpointVerdict.UNKNOWN,
        cause=CheckpointCause.UNKNOWN,
        sentence=f"{printable(Path(path.name))} was not checked: {said}",
        file=printable(path),
        size_bytes=0,
        modified_unix_s=0.0,
    )


def _together(directory: Path, tree: Tree, now_unix_s: float) -> tuple[list[str], list[CheckpointReport]]:
    layouts: list[str] = []
    problems: list[CheckpointReport] = []
    for view in views(directory, tree, now_unix_s):
        for layout in layouts_of(view):
            layouts.append(layout.NAME)
            problems += [_about(problem, layout.NAME) for problem in layout.check(view)]
    return layouts, problems


def _about(problem: Problem, layout: str) -> CheckpointReport:
    judgement = problem.judgement
    return CheckpointReport(
        path=printable(problem.path),
        layout=layout,
        verdict=judgement.verdict,
        cause=judgement.cause,
        sentence=one_line(f"{printable(Path(problem.path.name))} {judgement.said}"),
        file=printable(problem.path),
        key=judgement.key,
        offset_bytes=judgement.offset_bytes,
        size_bytes=0,
        modified_unix_s=0.0,
    )


def _report(directory: Path, tree: Tree, layouts: list[str], found: list[CheckpointReport], now_unix_s: float) -> CheckpointReport:
    bad = [report for report in found if report.verdict is not CheckpointVerdict.OK]
    newest = max((status.st_mtime for status in tree.files.values()), default=directory.stat().st_mtime)
    size = sum(status.st_size for status in tree.files.values())
    bad.sort(key=lambda report: _WORST.index(report.verdict))
    whole = CheckpointReport(
        path=printable(directory),
        layout=layouts[0] if layouts else "files",
        verdict=CheckpointVerdict.OK,
        cause=CheckpointCause.NONE,
        sentence=f"{printable(Path(directory.name))} is whole: {say_count(len(tree.files), 'file')}, {size} bytes, {_content(found)}",
        step=step_in_directory_name(directory.name),
        size_bytes=size,
        modified_unix_s=newest,
        content_verified=all(report.content_verified for report in found),
    )
    return _with_problems(whole, bad, now_unix_s) if bad else whole


def _doubted(report: CheckpointReport, doubts: list[CheckpointReport]) -> CheckpointReport:
    """What speaks against a whole set without proving anything: it is good, and its content is unknown."""
    if report.verdict is not CheckpointVerdict.OK or not doubts:
        return report
    return msgspec.structs.replace(report, more=tuple(doubt.sentence for doubt in doubts), content_verified=False)


def _with_problems(whole: CheckpointReport, bad: list[CheckpointReport], now_unix_s: float) -> CheckpointReport:
    first = bad[0]
    age_s = now_unix_s - whole.modified_unix_s
    unfinished = first.verdict is CheckpointVerdict.INCOMPLETE and "last written" not in first.sentence and age_s < STILL_WRITING_S
    since = f"; {say_since(age_s)}" if unfinished else ""
    further = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return msgspec.structs.replace(
        whole,
        verdict=first.verdict,
        cause=first.cause,
        sentence=f"{Path(whole.path).name} is {first.verdict}: {first.sentence}{since}{further}",
        file=first.file,
        key=first.key,
        offset_bytes=first.offset_bytes,
        more=tuple(report.sentence for report in bad[1 : _MOST_TOLD + 1]),
        content_verified=False,
    )


def _content(found: list[CheckpointReport]) -> str:
    unknown = sum(not report.content_verified for report in found)
    return f"structure ok, content unknown for {unknown} of them, which have no checksums" if unknown else "every checksum right"


def identity_of_path(path: Path) -> Identity:
    """Changes whenever a file, or anything in a directory, is written. Raises BadInput or NoPermission."""
    if path.is_dir():
        return _identity(read_tree(path))
    with OpenedFile(path) as file:
        return file.identity[1:]


def _identity(tree: Tree) -> Identity:
    """Changes whenever a file of the tree comes, goes, or is written."""
    digest = hashlib.blake2b(digest_size=7)
    for path, status in _sorted(tree.files.items()):
        digest.update(f"{os.fsencode(path)!r} {status.st_ino} {status.st_size} {status.st_mtime_ns}\n".encode())
    return 0, sum(status.st_size for status in tree.files.values()), int.from_bytes(digest.digest())


def _sorted(items: Iterable[tuple[Path, os.stat_result]]) -> list[tuple[Path, os.stat_result]]:
    return sorted(items, key=lambda item: os.fsencode(item[0]))
