"""The bytes of events.jsonl into events in order, whatever was cut, doubled, interleaved or told by a clock that was set back. Pure."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from operator import attrgetter, le
from typing import Any

import msgspec

from rankpatrol.core.durations import say_duration
from rankpatrol.goodput.records import TIMES_S, Event, Moment

_BLOCK_BYTES = 64 << 10
_EVENTS, _MOMENTS = msgspec.json.Decoder(Event), msgspec.json.Decoder(Moment)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_time: Callable[[Moment], float] = attrgetter("at_unix_s")
_kind: Callable[[Moment], str] = attrgetter("kind")
# Told once in a job, an attempt or an incident; told again by a second agent, the first word stands.
_ONCE = frozenset({"job_started", "attempt_started", "resumed", "attempt_ended", "alert", "verdict", "incident_closed", "job_ended"})
# Two writers on one machine pass each other by less than this; more is a clock that was set back, unless it happens again and again.
_DISORDER_S = 5.0
_CLOCK_STEPS_MOST = 3
# What no XML and no terminal takes.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
Ordered = tuple[tuple[Moment, ...], tuple[str, ...]]


def read(content: bytes) -> Ordered:
    """The events in order, times never falling, and in plain words what had to be mended."""
    events, remarks = _decoded(content)
    events, doubled = _once(events)
    if doubled:
        remarks.append(f"{doubled} events were told twice (two agents?): the first word stands")
    events, said = _straightened(events)
    return tuple(events), (*remarks, *said)


def seconds(value: Any) -> float | None:
    """A UTC time that another writer may have spoiled."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and TIMES_S[0] <= value < TIMES_S[1] else None


def count(value: Any) -> int | None:
    """A step or a number of ranks that another writer may have spoiled."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def text(value: Any, otherwise: str) -> str:
    """A word that another writer may have spoiled, fit to be shown."""
    return plain(value) if isinstance(value, str) else otherwise


def plain(words: str) -> str:
    """Foreign words without what would move a terminal's cursor or spoil a picture."""
    return _UNPRINTABLE.sub("?", words)


def ranks(value: Any) -> tuple[int, ...]:
    """A list of ranks that another writer may have spoiled."""
    return tuple(rank for each in value if (rank := count(each)) is not None) if isinstance(value, list | tuple) else ()


def _decoded(content: bytes) -> tuple[list[Moment], list[str]]:
    """A block of lines is decoded at once, and line by line only where one of them is no event: a long job has millions."""
    events: list[Moment] = []
    unreadable = lines = 0
    for block in _blocks(content):
        try:
            more, spoiled = _all(block), 0
        except _UNREADABLE:
            more, spoiled = _one_by_one(block)
        events += more
        unreadable += spoiled
        lines += len(more) + spoiled
    remarks = [f"{unreadable} of {lines} lines could not be read (cut, or no event) and are left out"] if unreadable else []
    return events, remarks


def _all(block: bytes) -> Sequence[Moment]:
    """The events of a block, in short where all are progress. Raises where a line is none."""
    if block.count(b'"progress"') >= block.count(b"\n"):
        moments = _MOMENTS.decode_lines(block)
        if set(map(_kind, moments)) == {"progress"}:
            return moments
    return _EVENTS.decode_lines(block)


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


def _once(events: list[Moment]) -> tuple[list[Moment], int]:
    known: set[tuple[str, int, int | str | None]] = set()
    doubled: set[int] = set()
    for event in (each for each in events if each.kind in _ONCE and isinstance(each, Event)):
        key = (event.kind, 0 if event.kind in {"job_started", "job_ended"} else event.attempt, event.incident)
        if key in known:
            doubled.add(id(event))
        known.add(key)
    return ([each for each in events if id(each) not in doubled] if doubled else events), len(doubled)


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
