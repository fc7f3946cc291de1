"""The bytes of events.jsonl into events in order, whatever was cut, doubled, interleaved or told by a clock that was set back. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, pairwise
from operator import attrgetter, le
from typing import Any, NamedTuple

import msgspec

from rankpatrol.core.durations import say_duration
from rankpatrol.core.plain import plain
from rankpatrol.goodput.records import TIMES_S, Event, Moment, Span

_BLOCK_BYTES = 32 << 10
_EVENTS, _MOMENTS = msgspec.json.Decoder(Event), msgspec.json.Decoder(Moment)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_time: Callable[[Moment], float] = attrgetter("at_unix_s")
_kind: Callable[[Moment], str] = attrgetter("kind")
_attempt: Callable[[Moment], int] = attrgetter("attempt")
# Told once in a job, an attempt or an incident; told again by a second agent, the first word stands.
_ONCE = frozenset({"job_started", "attempt_started", "resumed", "attempt_ended", "alert", "verdict", "incident_closed", "job_ended"})
# Two writers on one machine pass each other by less than this; more is a clock that was set back, unless it happens again and again.
_DISORDER_S = 5.0
_CLOCK_STEPS_MOST = 3


class Told(NamedTuple):
    """All that was told, in order, times never falling: the progress of each attempt, and the rest; and what had to be mended."""

    span: Span
    others: list[Event]
    progress: dict[int, list[Moment]]
    remarks: tuple[str, ...]


def read(content: bytes) -> Told | None:
    """What these bytes tell, or None where not one event is in them."""
    runs, remarks = _decoded(content)
    others, progress = _parted(runs)
    times_s = list(map(_time, chain.from_iterable(runs)))
    if not times_s:
        return None
    doubled = _told_again(others)
    if doubled or not all(map(le, times_s, islice(times_s, 1, None))):
        events = [event for event in chain.from_iterable(runs) if id(event) not in doubled]
        if doubled:
            remarks.append(f"{len(doubled)} events were told twice (two agents?): the first word stands")
        events, said = _straightened(events)
        remarks += said
        others, progress = _parted([events])
        times_s = [events[0].at_unix_s, events[-1].at_unix_s]
    return Told(Span(times_s[0], times_s[-1]), others, progress, tuple(remarks))


def seconds(value: Any) -> float | None:
    """A UTC time that another writer may have spoiled."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and TIMES_S[0] <= value < TIMES_S[1] else None


def count(value: Any) -> int | None:
    """A step or a number of ranks that another writer may have spoiled."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text(value: Any, otherwise: str) -> str:
    """A word that another writer may have spoiled, fit to be shown."""
    return plain(value) if isinstance(value, str) else otherwise


def ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks that another writer may have spoiled."""
    return tuple(rank for each in value if (rank := count(each)) is not None) if isinstance(value, list | tuple) else ()


def _decoded(content: bytes) -> tuple[list[Sequence[Moment]], list[str]]:
    """A block of lines is decoded at once, and line by line only where one of them is no event: a long job has millions.

    Told as runs: of progress alone, or of anything.
    """
    runs: list[Sequence[Moment]] = []
    unreadable = lines = 0
    for block in _blocks(content):
        try:
            more, spoiled = _all(block), 0
        except _UNREADABLE:
            one_by_one, spoiled = _one_by_one(block)
            more = [one_by_one]
        runs += more
        unreadable += spoiled
        lines += sum(map(len, more)) + spoiled
    remarks = [f"{unreadable} of {lines} lines could not be read (cut, or no event) and are left out"] if unreadable else []
    return runs, remarks


def _all(block: bytes) -> list[Sequence[Moment]]:
    """The events of a block: in short what tells of progress, and that is most of it. Raises where a line is none."""
    moments = _MOMENTS.decode_lines(block)
    others = list(compress(range(len(moments)), map("progress".__ne__, map(_kind, moments))))
    if not others:
        return [moments]
    lines = block.split(b"\n", len(moments))
    if len(lines) < len(moments) or b"" in lines[: len(moments)]:
        return [_EVENTS.decode_lines(block)]  # empty lines: which is which cannot be told by counting
    runs: list[Sequence[Moment]] = []
    for before, at in pairwise((-1, *others)):
        runs += (moments[before + 1 : at], [_EVENTS.decode(lines[at])])
    return [*runs, moments[others[-1] + 1 :]]


def _parted(runs: Iterable[Sequence[Moment]]) -> tuple[list[Event], dict[int, list[Moment]]]:
    """Progress by attempt, and all else."""
    others: list[Event] = []
    progress: defaultdict[int, list[Moment]] = defaultdict(list)
    for run in runs:
        attempts = set(map(_attempt, run))
        if len(attempts) == 1 and set(map(type, run)) == {Moment}:
            progress[attempts.pop()] += run
            continue
        for event in run:
            if event.kind == "progress":
                progress[event.attempt].append(event)
            elif isinstance(event, Event):
                others.append(event)
    return others, progress


def _blocks(content: bytes) -> Iterator[bytes]:
    """A thousand lines each, about, cut at the ends of lines."""
    begin = 0
    while begin < len(content):
        end = content.find(b"\n", begin + _BLOCK_BYTES)
        end = len(content) if end < 0 else end + 1
        yield content[begin:end]
        begin = end


def _one_by_one(block: bytes) -> tuple[list[Moment], int]:
    """The events of a block, and how many of its lines are none."""
    events: list[Moment] = []
    spoiled = 0
    for line in block.split(b"\n"):
        if line.strip():
            try:
                events.append(_EVENTS.decode(line))
            except _UNREADABLE:
                spoiled += 1
    return events, spoiled


def _told_again(events: Iterable[Event]) -> set[int]:
    """The ids of those that repeat what was told before."""
    known: set[tuple[str, int, int | str | None]] = set()
    doubled: set[int] = set()
    for event in events:
        key = (event.kind, 0 if event.kind in {"job_started", "job_ended"} else event.attempt, event.incident)
        if event.kind in _ONCE and key in known:
            doubled.add(id(event))
        known.add(key)
    return doubled


def _straightened(events: list[Moment]) -> tuple[list[Moment], list[str]]:
    """A few large steps back are a clock that was set: what follows is moved on. Many are several writers: sorted by time."""
    times_s = list(map(_time, events))
    if all(map(le, times_s, islice(times_s, 1, None))):
        return events, []
    back_s = [before - after for before, after in pairwise(times_s)]
    steps = [each for each in back_s if each > _DISORDER_S]
    if len(steps) > _CLOCK_STEPS_MOST:
        return sorted(events, key=_time), ["the lines of several writers are interleaved: they are taken in the order of their times"]
    moved: list[Moment] = []
    shift_s = latest_s = 0.0
    for event in events:
        if latest_s - (event.at_unix_s + shift_s) > _DISORDER_S:
            shift_s = latest_s - event.at_unix_s
        moved.append(_shifted(event, shift_s) if shift_s else event)
        latest_s = max(latest_s, moved[-1].at_unix_s)
    words = ", ".join(say_duration(each) for each in steps)
    said = [f"the clock was set back ({words}): the time between is taken as none, so the wall time is at least this"] if steps else []
    return sorted(moved, key=_time), said


def _shifted(event: Moment, by_s: float) -> Moment:
    """Times that the event itself names were read from the same clock."""
    moved = {
        name: value + by_s for name in ("at_unix_s", "since", "onset_unix_s") if (value := seconds(getattr(event, name, None))) is not None
    }
    return msgspec.structs.replace(event, **moved)
