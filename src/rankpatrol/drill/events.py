"""The job's events.jsonl as a stranger reads it: by the contract alone, and forgiving of fields it does not know."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from rankpatrol.core.records import Record


class Event(Record, frozen=True, kw_only=True):
    """One line. Fields of other kinds are None."""

    at_unix_s: float
    kind: str
    attempt: int = 0
    incident: int | str | None = None
    verdict: str | None = None
    cause: str | None = None
    suspect_ranks: tuple[int, ...] | None = None
    culprit_ranks: tuple[int, ...] | None = None
    sentence: str | None = None
    certainty: str | None = None
    onset_unix_s: float | None = None
    path: str | None = None
    what: str | None = None
    bundle: str | None = None
    how: str | None = None
    reason: str | None = None
    checkpoint: str | None = None
    step: int | None = None
    exit_code: int | None = None
    pid: int | None = None
    done: bool | None = None

    @property
    def named(self) -> tuple[int, ...] | None:
        """The ranks that an alert or verdict blames, None where it blames nobody."""
        return {"alert": self.suspect_ranks, "verdict": self.culprit_ranks}.get(self.kind) or None


class EventFile:
    """Reads what was added since the last look; a line that is still being written is left for the next one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset_bytes = 0
        self.events: list[Event] = []
        self.unreadable = 0

    def look(self) -> list[Event]:
        """The events added since the last look."""
        try:
            with self._path.open("rb") as lines:
                lines.seek(self._offset_bytes)
                added = lines.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset_bytes += len(whole)
        fresh = list(self._decode(whole.splitlines()))
        self.events.extend(fresh)
        return fresh

    def _decode(self, lines: Iterable[bytes]) -> Iterable[Event]:
        for line in lines:
            try:
                yield msgspec.json.decode(line, type=Event)
            except msgspec.MsgspecError:
                self.unreadable += 1
