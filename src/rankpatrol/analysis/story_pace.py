"""How fast a job's counter usually moves, and how long it has stood still before at such a place."""

import itertools
from statistics import median

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, seconds_between
from rankpatrol.formats.log_ledger import Counter, Ledger, Mark

_UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
}
# Evaluations and saves happen at round steps.
_ROUND = (10_000, 5_000, 2_000, 1_000, 500, 250, 200, 100, 50)
_LONGER = 2.0


class Pace(Record, frozen=True, kw_only=True):
    """The counter that says most. `usual_gap_s` lies between two of its lines.

    `pauses_s` are earlier gaps at steps as round as the last one.
    """

    last: Mark
    rank: int | None
    lines: int
    usual_gap_s: float | None
    longest_gap_s: float | None
    pauses_s: tuple[float, ...]
    every: int | None
    stated_s: tuple[float, ...] = ()


def pace_of(ledger: Ledger) -> Pace | None:
    """The pace of the strongest, longest counter; None where nothing counts."""
    if not ledger.counters:
        return None
    key, counter = max(ledger.counters.items(), key=lambda item: (item[1].strength, item[1].count))
    marks = counter.marks()
    gaps = _gaps(marks)
    every = next((number for number in _ROUND if marks[-1].step > 0 and marks[-1].step % number == 0), None)
    usual = _usual(counter, gaps)
    return Pace(
        last=max(
            (other.marks()[-1] for other in ledger.counters.values() if other.strength == counter.strength), key=lambda mark: mark.order
        ),
        rank=key[1] if key[0] == "rank" and isinstance(key[1], int) else None,
        lines=counter.count,
        usual_gap_s=usual,
        longest_gap_s=max((gap for _, gap in gaps), default=None),
        pauses_s=tuple(gap for mark, gap in gaps if every and mark.step % every == 0 and usual is not None and gap > _LONGER * usual),
        every=every,
        stated_s=tuple(mark.step_s for mark in marks if mark.step_s),
    )


def stated_seconds(fact: Fact) -> float | None:
    """A length of time as a text gives it: `11m05s`, `3 h`, `25 min`."""
    if (milliseconds := fact.number("ms")) is not None:
        return milliseconds / 1000
    number = fact.number("n") if "n" in fact.values else fact.number("seconds")
    if number is None:
        return None
    unit = _UNITS.get(fact.values.get("unit", "s").lower(), 1.0)
    smaller = fact.number("n2")
    return number * unit + (smaller * unit / 60 if smaller is not None else 0.0)


def _gaps(marks: list[Mark]) -> list[tuple[Mark, float]]:
    """Each mark with the time to the next one. Only neighbours by one counter line: what was left out between would be no gap."""
    found = []
    for one, two in itertools.pairwise(marks):
        gap = seconds_between(one.at, two.at)
        if gap is not None and gap >= 0 and two.step > one.step:
            found.append((one, gap))
    return found


def _usual(counter: Counter, gaps: list[tuple[Mark, float]]) -> float | None:
    """Seconds between two lines: what the lines say of a step, times the steps between two lines, else the median gap."""
    marks = counter.marks()
    stated = [mark.step_s for mark in marks if mark.step_s]
    strides = [two.step - one.step for one, two in itertools.pairwise(marks) if two.step > one.step]
    if stated and strides:
        return median(stated) * min(strides)
    return median(gap for _, gap in gaps) if gaps else (stated[-1] if stated else None)
