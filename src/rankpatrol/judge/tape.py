"""A recording of what the judge was told, as JSON lines: every event exactly as it was, and little of it twice.

A round in which only counters moved is an array: milliseconds since the line before, then what each counter grew by, as one number where
all ranks agree: main thread ticks, switches, steps of the log, steps of the marks. All else is an object that names its `type`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Record
from rankpatrol.judge.records import AttemptBegan, Event, Finding, JudgeState, Looked, Observed, Policy, RankActivity

VERSION = 1
_COUNTERS = ("main_thread_ticks", "switches", "step", "marked_steps")
# What most recordings have no need of.
_UNSAID: dict[str, Any] = {"seen_at_s": None}
_OTHERS = tuple(name for name in RankActivity.__struct_fields__ if name not in {*_COUNTERS, "rank"})
_NOT_ONE = "this is no recording: it does not begin as one"
_SPOILED = "Each line leans on the ones before it. Was the file edited, or put together from parts?"
_NO_RECORDING = "Give the recording.jsonl of a job that was started with `rankpatrol run --record` (or watched with --record)."


class TapeBegan(Record, frozen=True, tag="began", kw_only=True):
    """An agent began to record: its settings, and what its judge remembered. `unix_s` is the wall clock's time at `at_s`."""

    version: int = VERSION
    job: str
    at_s: float
    unix_s: float
    policy: Policy
    acts: bool
    state: JudgeState


class CrashFound(Record, frozen=True, tag="crash_found", kw_only=True):
    """A rank failed, and the analysis said who did first: the judge is not asked."""

    at_s: float
    onset_s: float
    diagnosis: Diagnosis


class AttemptOver(Record, frozen=True, tag="attempt_over", kw_only=True):
    """No rank of the attempt is left. `by_us`: the patrol that recorded had ended it."""

    at_s: float
    attempt: int
    ordered: bool
    by_us: bool


class WallMoved(Record, frozen=True, tag="wall_moved", kw_only=True):
    """The wall clock was set: its time at `at_s` is this now."""

    at_s: float
    unix_s: float


class Said(Record, frozen=True, tag="said", kw_only=True):
    """What the judge answered to the event before, without the diagnosis, which is that event's."""

    findings: tuple[dict[str, Any], ...]


class TapeStopped(Record, frozen=True, tag="stopped", kw_only=True):
    """Nothing was recorded from here on, and why."""

    at_s: float
    why: str


class _Changed(Record, frozen=True, tag="observed", kw_only=True):
    """A round in which more than counters changed: of each rank the fields that did. `order` where other ranks are seen than before."""

    at_s: float
    order: tuple[int, ...] | None = None
    ranks: dict[int, dict[str, Any]] = msgspec.field(default_factory=dict)


class _Look(Record, frozen=True, tag="looked", kw_only=True):
    """A close look: what its diagnosis says otherwise than the one before."""

    at_s: float
    changed: dict[str, Any]


TapeItem = TapeBegan | Event | CrashFound | AttemptOver | WallMoved | Said | TapeStopped
_Line = TapeBegan | AttemptBegan | CrashFound | AttemptOver | WallMoved | Said | TapeStopped | _Changed | _Look
_LINE = msgspec.json.Decoder(_Line)
_EXACT = msgspec.json.Encoder()


def said(findings: Iterable[Finding]) -> Said:
    """The judge's answer as the tape keeps it."""
    return Said(findings=tuple(_without_diagnosis(msgspec.to_builtins(finding)) for finding in findings))


def _without_diagnosis(finding: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in finding.items() if name != "diagnosis"}


class _Memory:
    """What the line before has left in the mind of writer and reader alike."""

    def __init__(self) -> None:
        self.at_ms = 0
        self.ranks: tuple[RankActivity, ...] = ()
        self.diagnosis: dict[str, Any] = {}


class TapeWriter:
    """Turns items into lines. Each line leans on those before it: none may be left out. After a new beginning none is needed."""

    def __init__(self) -> None:
        self._before = _Memory()

    def line(self, item: TapeItem) -> bytes:
        """One line with its end."""
        if isinstance(item, TapeBegan):
            self._before = _Memory()
        if isinstance(item, Observed):
            text = self._round(item)
        elif isinstance(item, Looked):
            told = msgspec.to_builtins(item.diagnosis)
            was, self._before.diagnosis = self._before.diagnosis, told
            changed = {name: value for name, value in told.items() if name not in was or value != was[name]}
            text = _EXACT.encode(_Look(at_s=item.at_s, changed=changed))
        else:
            text = _EXACT.encode(item)
        if not isinstance(item, Said):
            self._before.at_ms = _ms(item.at_s)
        return text + b"\n"

    def _round(self, event: Observed) -> bytes:
        before, self._before.ranks = self._before.ranks, event.ranks
        counted = _counted(before, event.ranks)
        if counted is None or _ms(event.at_s) / 1000 != event.at_s:
            return _EXACT.encode(_changed(before, event))
        columns: list[Any] = [_ms(event.at_s) - self._before.at_ms, *counted]
        while columns[-1] == 0 and len(columns) > 1:
            columns.pop()
        return _EXACT.encode(columns)


def _ms(at_s: float) -> int:
    return round(at_s * 1000)


def _counted(before: tuple[RankActivity, ...], now: tuple[RankActivity, ...]) -> list[int | list[int]] | None:
    """What each counter grew by, or None where that is not all that changed."""
    if [each.rank for each in before] != [each.rank for each in now]:
        return None
    if any(getattr(old, name) != getattr(new, name) for old, new in zip(before, now, strict=True) for name in _OTHERS):
        return None
    columns: list[int | list[int]] = []
    for name in _COUNTERS:
        grown: list[int] = []
        for old, new in zip(before, now, strict=True):
            was, now_is = getattr(old, name), getattr(new, name)
            if (was is None) != (now_is is None):
                return None
            grown.append(0 if now_is is None else now_is - was)
        columns.append(grown[0] if len(set(grown)) == 1 else grown)
    return columns


def _changed(before: tuple[RankActivity, ...], event: Observed) -> _Changed:
    known = {each.rank: each for each in before}
    order = tuple(each.rank for each in event.ranks)
    ranks: dict[int, dict[str, Any]] = {}
    for each in event.ranks:
        now = msgspec.to_builtins(each)
        was = msgspec.to_builtins(known[each.rank]) if each.rank in known else _UNSAID
        fresh = {name: value for name, value in now.items() if name not in was or value != was[name]}
        if fresh:
            ranks[each.rank] = fresh
    return _Changed(at_s=event.at_s, order=None if order == tuple(known) else order, ranks=ranks)


def read_tape(lines: Iterable[bytes]) -> Iterator[TapeItem]:
    """The items of a recording. A line that an agent's death cut off is left out. Raises BadInput with the line that cannot be read."""
    before, begun = _Memory(), False
    torn: BadInput | None = None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = _item(line, before)
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AttributeError) as problem:
            if torn is not None or not begun:
                raise torn or BadInput(_NOT_ONE, help=_NO_RECORDING) from problem
            torn = BadInput(f"line {number} of the recording cannot be read: {problem}", help=_SPOILED)
            continue
        if isinstance(item, TapeBegan):
            before, begun, torn = _begin(item), True, None
        elif torn is not None or not begun:
            raise torn or BadInput(_NOT_ONE, help=_NO_RECORDING)
        if not isinstance(item, Said):
            before.at_ms = _ms(item.at_s)
        yield item
    if not begun:
        raise BadInput("the recording is empty", help=_NO_RECORDING)


def _begin(item: TapeBegan) -> _Memory:
    if item.version > VERSION:
        raise BadInput(f"the recording is of a later version ({item.version})", help="Replay it with the rankpatrol that made it.")
    return _Memory()


def _item(line: bytes, before: _Memory) -> TapeItem:
    if line.startswith(b"["):
        return _counted_round(msgspec.json.decode(line), before)
    read = _LINE.decode(line)
    if isinstance(read, _Changed):
        return _changed_round(read, before)
    if isinstance(read, _Look):
        before.diagnosis = {**before.diagnosis, **read.changed}
        return Looked(at_s=read.at_s, diagnosis=msgspec.convert(before.diagnosis, Diagnosis))
    return read


def _counted_round(columns: list[Any], before: _Memory) -> Observed:
    grown: list[Any] = [*columns[1:], 0, 0, 0, 0][: len(_COUNTERS)]
    ranks = []
    for index, was in enumerate(before.ranks):
        fresh: dict[str, Any] = {}
        for name, column in zip(_COUNTERS, grown, strict=True):
            by = column[index] if isinstance(column, list) else column
            if by:
                fresh[name] = getattr(was, name) + int(by)
        ranks.append(msgspec.structs.replace(was, **fresh) if fresh else was)
    before.ranks = tuple(ranks)
    return Observed(at_s=(before.at_ms + int(columns[0])) / 1000, ranks=before.ranks)


def _changed_round(read: _Changed, before: _Memory) -> Observed:
    known = {each.rank: msgspec.to_builtins(each) for each in before.ranks}
    order = tuple(known) if read.order is None else read.order
    ranks = [{**known.get(rank, {}), **read.ranks.get(rank, {})} for rank in order]
    before.ranks = tuple(msgspec.convert(each, RankActivity) for each in ranks)
    return Observed(at_s=read.at_s, ranks=before.ranks)
