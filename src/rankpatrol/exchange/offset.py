"""How far a node's wall clock is from ours, from a few round trips: a log line of there can then be put beside one of here."""

import math
from collections.abc import Iterable
from typing import Protocol

from rankpatrol.core.records import Missing, Record
from rankpatrol.exchange.serving import CLOCK
from rankpatrol.system.clock import Clock

_TRIES = 7


class RoundTrip(Record, frozen=True, kw_only=True):
    """One question: our wall clock when it left, how long until the answer was here (monotonic), and the wall clock it brought."""

    asked_unix_s: float
    took_s: float
    theirs_unix_s: float


class ClockOffset(Record, frozen=True, kw_only=True):
    """Their wall clock minus ours; the truth lies within this much of it."""

    offset_s: float
    within_s: float


class Asks(Protocol):
    """What is needed of an exchange."""

    def ask(self, node: str, command: str, body: bytes, deadline_s: float) -> bytes | Missing: ...


def estimate_offset(trips: Iterable[RoundTrip]) -> ClockOffset | None:
    """From the shortest round trip: their clock was read at some moment of it, so the middle is wrong by half of it at most."""
    shortest = min(trips, key=lambda trip: trip.took_s, default=None)
    if shortest is None:
        return None
    half_s = shortest.took_s / 2
    return ClockOffset(offset_s=shortest.theirs_unix_s - (shortest.asked_unix_s + half_s), within_s=half_s)


def measure_offset(exchange: Asks, node: str, clock: Clock, deadline_s: float) -> ClockOffset | Missing:
    """Ask a node for its wall clock a few times, within one deadline."""
    until = clock.mono_s() + deadline_s
    trips: list[RoundTrip] = []
    why = Missing(f"no time to ask {node}")
    for _ in range(_TRIES):
        began, asked_unix_s = clock.mono_s(), clock.unix_s()
        if began >= until:
            break
        answer = exchange.ask(node, CLOCK, b"", until - began)
        took_s = clock.mono_s() - began
        if isinstance(answer, Missing):
            why = answer
            break
        theirs = _unix_s(answer)
        if theirs is None:
            why = Missing(f"{node} answered with what is no time")
            break
        trips.append(RoundTrip(asked_unix_s=asked_unix_s, took_s=took_s, theirs_unix_s=theirs))
    return estimate_offset(trips) or why


def _unix_s(answer: bytes) -> float | None:
    try:
        theirs = float(answer)
    except ValueError:
        return None
    return theirs if math.isfinite(theirs) else None
