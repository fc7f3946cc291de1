"""One checkpoint file, judged by the layout it is in."""

from collections.abc import Callable
from pathlib import Path

from rankpatrol.checkpoints import torch_legacy, torch_zip
from rankpatrol.checkpoints.opened import FileShrank, OpenedFile, printable
from rankpatrol.checkpoints.report import CheckpointCause, CheckpointReport, CheckpointVerdict, Judgement
from rankpatrol.checkpoints.steps import step_of
from rankpatrol.core.records import Record
from rankpatrol.system.clock import Clock, SystemClock


class Layout(Record, frozen=True):
    """A kind of checkpoint file: its name, how it is recognised, how it is judged. Neither raises anything but OSError and FileShrank."""

    name: str
    matches: Callable[[OpenedFile], bool]
    verify: Callable[[OpenedFile, float], Judgement]


LAYOUTS = (
    Layout(torch_zip.NAME, torch_zip.matches, torch_zip.verify),
    Layout(torch_legacy.NAME, torch_legacy.matches, torch_legacy.verify),
)


class Verifier:
    """Judges checkpoint files, and remembers what it read: a file is read again only when it was written again."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[Path, tuple[tuple[int, int, int, int], CheckpointReport]] = {}

    def verify(self, path: Path) -> CheckpointReport:
        """The report on one file, which is read and never run. Raises BadInput or NoPermission where it cannot be opened."""
        with OpenedFile(path) as file:
            known = self._known.get(path)
            if known is not None and known[0] == file.identity:
                return known[1]
            layout, judgement = self._judge(file)
            report = _report(file, layout, judgement)
            # What is not finished is looked at anew each time: its age is part of the sentence.
            if report.verdict in {CheckpointVerdict.OK, CheckpointVerdict.CORRUPT} and not file.grown_or_rewritten():
                self._known[path] = (file.identity, report)
            return report

    def _judge(self, file: OpenedFile) -> tuple[str, Judgement]:
        layout = "unknown"
        try:
            for known in LAYOUTS:
                if known.matches(file):
                    layout = known.name
                    judgement = known.verify(file, self._clock.unix_s())
                    break
            else:
                judgement = _no_layout(file)
        except FileShrank as problem:
            return layout, _changed(f"was shortened while it was read ({problem})")
        except OSError as problem:
            said = f"cannot be read to its end: {problem.strerror or problem}"
            return layout, Judgement(verdict=CheckpointVerdict.UNKNOWN, cause=CheckpointCause.UNKNOWN, said=said)
        if file.grown_or_rewritten():
            return layout, _changed(f"was written while it was read, from {file.size_bytes} bytes on")
        return layout, judgement


def _changed(said: str) -> Judgement:
    said = f"{said}: it may still be being written"
    return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.TRUNCATED, said=said)


def _no_layout(file: OpenedFile) -> Judgement:
    if not file.size_bytes:
        said = "is empty (0 bytes): nothing of it was written yet, or its writer died"
        return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.TRUNCATED, said=said, offset_bytes=0)
    head = min(4096, file.size_bytes)
    if file.is_zero_at(0, head):
        said = f"starts with {head} zeros: its length ({file.size_bytes} bytes) was set, but its start was never written"
        return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.TRUNCATED, said=said, offset_bytes=0)
    said = f"({file.size_bytes} bytes) is in no layout that is known here"
    return Judgement(verdict=CheckpointVerdict.UNKNOWN, cause=CheckpointCause.UNKNOWN, said=said)


def _report(file: OpenedFile, layout: str, judgement: Judgement) -> CheckpointReport:
    return CheckpointReport(
        path=printable(file.path),
        layout=layout,
        verdict=judgement.verdict,
        cause=judgement.cause,
        sentence=f"{printable(Path(file.path.name))} {judgement.said}",
        file=None if judgement.verdict is CheckpointVerdict.OK else printable(file.path),
        key=judgement.key,
        offset_bytes=judgement.offset_bytes,
        step=step_of(file.path),
        size_bytes=file.size_bytes,
        modified_unix_s=file.modified_unix_s,
        content_verified=judgement.content_verified,
    )
