"""The job's journal: events.jsonl for others, one event a line, and incidents.jsonl, from which an incident can be replayed.

Each line is written to the spool on a local disk first; a courier carries it to the job directory, which may be full or hang.
"""

import contextlib
import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.evidence.redact import redact_record
from rankpatrol.incident.records import IncidentEvent
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import open_regular

_UNWRITTEN_MOST = 1000
_BLOCK_BYTES, _LONGEST_LINE_BYTES = 4 << 20, 16 << 20
# Of what is deep enough, msgspec's decoder says so with a RecursionError.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonLines:
    """One file of lines, each written in a single append. What a full disk refuses is kept and tried again with the next line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: deque[bytes] = deque(maxlen=_UNWRITTEN_MOST)

    def unwritten(self) -> int:
        """How many lines the file has not taken yet."""
        return len(self._unwritten)

    def append(self, record: Any) -> bool:
        """True when this line and all before it are in the file."""
        return self.append_lines(msgspec.json.encode(record) + b"\n")

    def append_lines(self, lines: bytes) -> bool:
        """The same for lines that are written out already."""
        self._unwritten.append(lines)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return False
        try:
            return self._flush(descriptor)
        finally:
            os.close(descriptor)

    def size_bytes(self) -> int:
        """How large the file is now."""
        return self._path.stat().st_size if self._path.exists() else 0

    def catch_up(self, whole: "JsonLines", until_bytes: int) -> None:
        """Append what another file has up to there and this one has not, if this is the beginning of it. Raises OSError."""
        have = self._path.read_bytes() if self._path.exists() else b""
        all_of_it = whole._path.read_bytes()[:until_bytes] if until_bytes else b""
        if len(all_of_it) > len(have) and all_of_it.startswith(have):
            self.append_lines(all_of_it[len(have) :])

    def _flush(self, descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            while self._unwritten:
                written = os.write(descriptor, self._unwritten[0])
                if written < len(self._unwritten[0]):  # the disk filled up in the middle of the line
                    self._unwritten[0] = self._unwritten[0][written:]
                    return False
                self._unwritten.popleft()
        return not self._unwritten


class Journal:
    """Writes the two files, without the secrets that a log's words may hold. There is one writer: the agent."""

    def __init__(self, spool: Path, job_dir: Path, courier: Courier, clock: Clock) -> None:
        self._clock, self._courier = clock, courier
        self._events = [JsonLines(folder / "events.jsonl") for folder in (spool, job_dir)]
        self._incidents = [JsonLines(folder / "incidents.jsonl") for folder in (spool, job_dir)]
        self.listeners: list[Callable[[dict[str, Any]], None]] = []

    def tell(self, kind: str, attempt: int, **fields: Any) -> None:
        """Write one event of CONTRACT's kinds."""
        event = {"at_unix_s": round(self._clock.unix_s(), 3), "kind": kind, "attempt": attempt, **fields}
        self._write(self._events, event)
        for listener in self.listeners:
            listener(event)

    def record(self, event: IncidentEvent) -> None:
        """Keep an incident's event for replay."""
        self._write(self._incidents, event)

    def catch_up(self) -> None:
        """Carry what an earlier agent had written to the spool and was killed before it could carry."""
        for spooled, shared in (self._events, self._incidents):
            # What is told from now on is carried by itself.
            self._courier.send(functools.partial(shared.catch_up, spooled, spooled.size_bytes()))

    def backlog(self) -> int:
        """How many records the job directory has not taken yet."""
        return self._courier.waiting() + sum(lines.unwritten() for lines in (self._events[1], self._incidents[1]))

    def _write(self, places: list[JsonLines], record: Any) -> None:
        spooled, shared = places
        record = redact_record(msgspec.to_builtins(record))
        spooled.append(record)
        self._courier.send(lambda: _carry(shared, record))


def _carry(lines: JsonLines, record: Any) -> None:
    lines.append(record)


def _nobody(_lines_left_out: int) -> None:
    """Nobody wants to know."""


def read_events(folder: Path, *, about: bytes = b"", left_out: Callable[[int], None] = _nobody) -> Iterator[dict[str, Any]]:
    """The events so far; a last line that is not whole yet is left out.

    With `about`, only lines in which this stands are decoded (hundreds of progress lines come on one incident). What is no event by the
    contract (an object with a kind and a time) is left out too, and `left_out` is told how many these were. Raises BadInput, NoPermission.
    """
    return read_event_file(folder / "events.jsonl", about=about, left_out=left_out)


def read_event_file(path: Path, *, about: bytes = b"", left_out: Callable[[int], None] = _nobody) -> Iterator[dict[str, Any]]:
    """The same of a file by another name."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    spoiled = 0
    for line, whole in _lines(path, about):
        try:
            event = decoder.decode(line)
        except _UNREADABLE:
            spoiled += whole
            continue
        if isinstance(event.get("kind"), str) and _is_time(event.get("at_unix_s")):
            yield event
        else:
            spoiled += 1
    left_out(spoiled)


def read_incident_events(folder: Path) -> Iterator[IncidentEvent]:
    """The incident events so far, in order. Raises BadInput, NoPermission."""
    decoder = msgspec.json.Decoder(IncidentEvent)
    for line, _ in _lines(folder / "incidents.jsonl"):
        with contextlib.suppress(*_UNREADABLE):
            yield decoder.decode(line)


def _is_time(value: Any) -> bool:
    """UTC seconds that a calendar has: until the year 5138."""
    return isinstance(value, int | float) and 0 <= value < 1e11


def _lines(path: Path, about: bytes = b"") -> Iterator[tuple[bytes, bool]]:
    """The lines that are not blank and in which `about` stands, each with whether its end is there; a few MB in memory at a time."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        for line in whole_lines(_blocks(file, path), about):
            if text := line.strip():
                yield text, line.endswith(b"\n")


def whole_lines(blocks: Iterable[bytes], about: bytes = b"") -> Iterator[bytes]:
    """Blocks of bytes cut at the ends of lines. Of a line without an end no more than some MB are kept: it is no event."""
    rest = b""
    for block in blocks:
        head, end, tail = block.rpartition(b"\n")
        if not end:
            rest = (rest + tail)[:_LONGEST_LINE_BYTES]
            continue
        text, rest = rest + head, tail
        if about not in text:  # most blocks hold nothing but progress
            continue
        yield from (line + b"\n" for line in text.split(b"\n") if about in line)
    if rest and about in rest:
        yield rest


def _blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    try:
        while block := file.read(_BLOCK_BYTES):
            yield block
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror}", help="Its disk or its server refuses; look again later.") from problem
