"""The job's journal: events.jsonl for others, one event a line, and incidents.jsonl, from which an incident can be replayed.

Each line is written to the spool on a local disk first; a courier carries it to the job directory, which may be full or hang.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.incident.records import IncidentEvent
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock

_UNWRITTEN_MOST = 1000


class JsonLines:
    """One file of lines, each written in a single append. What a full disk refuses is kept and tried again with the next line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: deque[bytes] = deque(maxlen=_UNWRITTEN_MOST)

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
    """Writes the two files. There is one writer: the agent."""

    def __init__(self, spool: Path, job_dir: Path, courier: Courier, clock: Clock) -> None:
        self._clock, self._courier = clock, courier
        self._events = [JsonLines(folder / "events.jsonl") for folder in (spool, job_dir)]
        self._incidents = [JsonLines(folder / "incidents.jsonl") for folder in (spool, job_dir)]

    def tell(self, kind: str, attempt: int, **fields: Any) -> None:
        """Write one event of CONTRACT's kinds."""
        self._write(self._events, {"at_unix_s": round(self._clock.unix_s(), 3), "kind": kind, "attempt": attempt, **fields})

    def record(self, event: IncidentEvent) -> None:
        """Keep an incident's event for replay."""
        self._write(self._incidents, event)

    def _write(self, places: list[JsonLines], record: Any) -> None:
        spooled, shared = places
        spooled.append(record)
        self._courier.send(lambda: _carry(shared, record))


def _carry(lines: JsonLines, record: Any) -> None:
    lines.append(record)


def read_events(folder: Path) -> Iterator[dict[str, Any]]:
    """The events so far; a last line that is not whole yet is left out."""
    yield from _lines(folder / "events.jsonl", dict[str, Any])


def read_incident_events(folder: Path) -> Iterator[IncidentEvent]:
    """The incident events so far, in order."""
    yield from _lines(folder / "incidents.jsonl", IncidentEvent)


def _lines(path: Path, kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for line in content.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            yield decoder.decode(line)
