"""The bytes of events.jsonl into events in order, whatever was cut, doubled, interleaved or told by a clock that was set back. Pure."""

import re
from itertools import pairwise
from typing import Any

import msgspec

from rankpatrol.core.durations import say_duration
from rankpatrol.goodput.records import Event

# Years 1970 to 5138: what lies outside is no time.
_TIMES_S = (0.0, 1e11)
# Told once in a job, an attempt or an incident; told again by a second agent, the first word stands.
_ONCE = frozenset({"job_started", "attempt_started", "resumed", "attempt_ended", "alert", "verdict", "incident_closed", "job_ended"})
# Two writers on one machine pass each other by less than this; more is a clock that was set back, unless it happens again and again.
_DISORDER_S = 5.0
_CLOCK_STEPS_MOST = 3
# What no XML and no terminal takes.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
Ordered = tuple[tuple[Event, ...], tuple[str, ...]]


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
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and _TIMES_S[0] <= value < _TIMES_S[1] else None


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


def _decoded(content: bytes) -> tuple[list[Event], list[str]]:
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    unreadable = 0
    lines = [line for line in content.split(b"\n") if line.strip()]
    for line in lines:
        try:
            event = decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unreadable += 1
            continue
        if seconds(event.at_unix_s) is None or event.attempt < 0:
            unreadable += 1
        else:
            events.append(event)
    remarks = [f"{unreadable} of {len(lines)} lines could not be read (cut, or no event) and are left out"] if unreadable else []
    return events, remarks


def _once(events: list[Event]) -> tuple[list[Event], int]:
    known: set[tuple[str, int, int | str | None]] = set()
    kept = []
    for event in events:
        key = (event.kind, 0 if event.kind in {"job_started", "job_ended"} else event.attempt, event.incident)
        if event.kind in _ONCE and key in known:
            continue
        known.add(key)
        kept.append(event)
    return kept, len(events) - len(kept)


def _straightened(events: list[Event]) -> tuple[list[Event], list[str]]:
    """A few large steps back are a clock that was set: what follows is moved on. Many are several writers: sorted by time."""
    back_s = [before.at_unix_s - after.at_unix_s for before, after in pairwise(events)]
    steps = [each for each in back_s if each > _DISORDER_S]
    if len(steps) > _CLOCK_STEPS_MOST:
        return sorted(events, key=_time), ["the lines of several writers are interleaved: they are taken in the order of their times"]
    moved, shift_s, latest_s = [], 0.0, 0.0
    for event in events:
        if latest_s - (event.at_unix_s + shift_s) > _DISORDER_S:
            shift_s = latest_s - event.at_unix_s
        moved.append(_shifted(event, shift_s) if shift_s else event)
        latest_s = max(latest_s, moved[-1].at_unix_s)
    words = ", ".join(say_duration(each) for each in steps)
    said = [f"the clock was set back ({words}): the time between is taken as none, so the wall time is at least this"] if steps else []
    return sorted(moved, key=_time), said


def _shifted(event: Event, by_s: float) -> Event:
    """Times that the event itself names were read from the same clock."""
    moved = {name: value + by_s for name in ("at_unix_s", "since", "onset_unix_s") if (value := seconds(getattr(event, name))) is not None}
    return msgspec.structs.replace(event, **moved)


def _time(event: Event) -> float:
    return event.at_unix_s
