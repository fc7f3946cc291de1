"""One checkpoint file, judged by the layout it is in."""

import contextlib
import time
from pathlib import Path
from typing import Final, Protocol

import msgspec

from rankpatrol.checkpoints import (
    dcp_metadata,
    dcp_shard,
    json_file,
    lightning_file,
    plain_pickle,
    safetensors_file,
    torch_legacy,
    torch_zip,
)
from rankpatrol.checkpoints.ledger import CHUNK_BYTES, Identity, Known, Ledger, first_look
from rankpatrol.checkpoints.numbers import odd_numbers
from rankpatrol.checkpoints.opened import FileShrank, OpenedFile, Readable, one_line, printable
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.checkpoints.report import CheckpointReport, CheckpointVerdict, Judgement, Look, corrupt, cut_short, good, unknown
from rankpatrol.checkpoints.steps import step_of
from rankpatrol.core.records import Record
from rankpatrol.system.clock import Clock, SystemClock


class Layout(Protocol):
    """A module that knows one kind of checkpoint file. Neither function raises anything but OSError and FileShrank."""

    NAME: str

    def matches(self, file: Readable, /) -> bool:
        """Whether a file is of this kind."""
        ...

    def verify(self, file: Readable, look: Look, /) -> Judgement:
        """What is to be said of a file of this kind."""
        ...


# Those that go by the file's name come first: its start may be damaged.
LAYOUTS: Final[tuple[Layout, ...]] = (
    safetensors_file,
    json_file,
    dcp_metadata,
    dcp_shard,
    lightning_file,
    torch_zip,
    torch_legacy,
    plain_pickle,
)


class Closeness(Record, frozen=True, kw_only=True):
    """How to check: with content or by structure alone, whether to look for NaN, and whether to read again what is known."""

    content: bool = True
    numbers: bool = False
    again: bool = False


class Verifier:
    """Judges checkpoint files, and remembers what it read: a file is read again only when it was written again."""

    def __init__(
        self, clock: Clock | None = None, *, ledger: Ledger | None = None, closeness: Closeness | None = None, pace: Pace | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self.ledger = ledger or Ledger()
        self.closeness = closeness or Closeness()
        self._pace = pace

    def now_unix_s(self) -> float:
        """The time that files' ages are told by."""
        return self._clock.unix_s()

    def verify(self, path: Path, *, beside: bool = False) -> CheckpointReport:
        """The report on one file, which is read and never run. Raises BadInput or NoPermission where it cannot be opened.

        A file that only lies `beside` a checkpoint is taken as it is, and compared with the first look at it.
        """
        with OpenedFile(path, self._pace, through=self.closeness.content) as file:
            known = self.ledger.known(path)
            identity = _identity(file)
            if known is not None and known.identity != identity:
                known = None
            if known is not None and self.fresh(known):
                return known.report
            layout, judgement = self._judge(file, beside=beside)
            crcs: tuple[int, ...] = ()
            if self._compares(judgement):
                crcs = first_look(file)
                judgement = judgement if known is None else _compared(judgement, file, known, crcs)
            if judgement.verdict is CheckpointVerdict.OK and file.grown_or_rewritten():
                judgement = _changed(f"was written while it was read, from {file.size_bytes} bytes on")
            report = _report(file, layout, judgement)
            # What is not finished is looked at anew each time: its age is part of the sentence.
            if report.verdict in {CheckpointVerdict.OK, CheckpointVerdict.CORRUPT} and not file.grown_or_rewritten():
                self.learn(path, identity, report, crcs)
            return report

    def fresh(self, known: Known) -> bool:
        """Whether what is known is as close a look as is asked for."""
        wanted = self.closeness
        return not wanted.again and known.content >= wanted.content and known.numbers >= wanted.numbers

    def learn(self, path: Path, identity: Identity, report: CheckpointReport, crcs: tuple[int, ...] = ()) -> None:
        """Remember a report that stands until the file or directory changes."""
        known = self.ledger.known(path)
        first = known.first_unix_s if known is not None and known.identity == identity else self.now_unix_s()
        if known is not None and known.identity == identity and known.crcs:
            crcs = known.crcs  # what was seen first stays the measure
        content, numbers = self.closeness.content, self.closeness.numbers
        self.ledger.learn(path, Known(identity=identity, report=report, content=content, numbers=numbers, crcs=crcs, first_unix_s=first))

    def _compares(self, judgement: Judgement) -> bool:
        """First looks are kept of what has no checksum of its own."""
        sound = judgement.verdict is CheckpointVerdict.OK and not judgement.content_verified
        return sound and self.closeness.content and self.ledger.lasting

    def _judge(self, file: OpenedFile, *, beside: bool) -> tuple[str, Judgement]:
        layout = "unknown"
        look = Look(now_unix_s=self.now_unix_s(), content=self.closeness.content, numbers=self.closeness.numbers)
        try:
            for known in LAYOUTS:
                if known.matches(file):
                    layout = known.NAME
                    judgement = known.verify(file, look)
                    break
            else:
                judgement = good(f"lies beside ({file.size_bytes} bytes)") if beside else _no_layout(file)
            if look.numbers and judgement.verdict is CheckpointVerdict.OK:
                judgement = odd_numbers(file, layout) or judgement
        except FileShrank as problem:
            return layout, _changed(f"was shortened while it was read ({problem})")
        except OSError as problem:
            return layout, unknown(f"cannot be read to its end: {problem.strerror or problem}")
        if file.grown_or_rewritten():
            return layout, _changed(f"was written while it was read, from {file.size_bytes} bytes on")
        return layout, judgement


def _identity(file: OpenedFile) -> Identity:
    """Changes whenever the file is written or replaced; a shard is judged by the `.metadata` beside it, and so by that one's changes."""
    inode, size, modified_ns = file.identity[1:]
    if file.path.suffix == dcp_shard.SUFFIX:
        with contextlib.suppress(OSError):
            modified_ns += file.path.with_name(dcp_metadata.METADATA).stat().st_mtime_ns
    return inode, size, modified_ns


def _compared(judgement: Judgement, file: OpenedFile, known: Known, crcs: tuple[int, ...]) -> Judgement:
    """The content beside that of the first look at this very file, where there was one."""
    if not known.crcs:
        return judgement
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(known.first_unix_s))
    for position, (now, then) in enumerate(zip(crcs, known.crcs, strict=True)):
        if now != then:
            start = position * CHUNK_BYTES
            end = min(start + CHUNK_BYTES, file.size_bytes)
            said = f"holds other bytes than at the first look ({when}) somewhere in bytes {start} to {end}, though nobody wrote to it since"
            return corrupt(said, offset_bytes=start)
    said = f"{judgement.said.partition(', content unknown')[0]}, content as at the first look ({when})"
    return msgspec.structs.replace(judgement, said=said, content_verified=True)


def _changed(said: str) -> Judgement:
    return cut_short(f"{said}: it may still be being written")


def _no_layout(file: OpenedFile) -> Judgement:
    if not file.size_bytes:
        return cut_short("is empty (0 bytes): nothing of it was written yet, or its writer died", offset_bytes=0)
    head = min(4096, file.size_bytes)
    if file.is_zero_at(0, head):
        said = f"starts with {head} zeros: its length ({file.size_bytes} bytes) was set, but its start was never written"
        return cut_short(said, offset_bytes=0)
    return unknown(f"({file.size_bytes} bytes) is in no layout that is known here")


def _report(file: OpenedFile, layout: str, judgement: Judgement) -> CheckpointReport:
    return CheckpointReport(
        path=printable(file.path),
        layout=layout,
        verdict=judgement.verdict,
        cause=judgement.cause,
        sentence=one_line(f"{printable(Path(file.path.name))} {judgement.said}"),
        file=None if judgement.verdict is CheckpointVerdict.OK else printable(file.path),
        key=judgement.key,
        offset_bytes=judgement.offset_bytes,
        step=step_of(file.path),
        size_bytes=file.size_bytes,
        modified_unix_s=file.modified_unix_s,
        content_verified=judgement.content_verified,
    )
