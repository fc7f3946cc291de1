"""Where the wall time went so far, counted now and then from a bounded copy of the job's events."""

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.goodput.account import account_of
from rankpatrol.goodput.records import Account, Card
from rankpatrol.goodput.story import launch_of
from rankpatrol.metrics.records import Goodput, TimesOfIncident

# Counted once a minute; of a young job more often, so that the numbers are never older than a tenth of its time.
_EVERY_S, _OF_AGE = 60.0, 0.1
# Counting takes a fiftieth of a percent of a core at most.
_COST_RATIO = 5000.0
# Of steps that were told one after the other every second one is forgotten, but for some at both ends, where attempts and stalls begin;
# the fewer, the more ends there are.
_STEPS_MOST, _EDGES = 4000, (20, 5, 1)
# A job that tells of this many phases and incidents is counted by `rankpatrol goodput` alone.
_LINES_MOST = 20_000
# These are few, and what they change is what people look for.
_AT_ONCE = frozenset({"alert", "verdict", "job_ended"})
_TOO_MANY = Missing(f"more than {_LINES_MOST} events: `rankpatrol goodput` counts them")


class GoodputSoFar:
    """Counts now and then. Times of incidents that were once known stay as they were told first."""

    def __init__(self) -> None:
        self._lines: list[tuple[bool, bytes]] = []
        self._steps, self._steps_most = 0, _STEPS_MOST
        self._counted_at_s: float | None = None
        self._pause_s = 0.0
        self._over = False
        self._latest: Goodput | Missing = Missing("not counted yet")
        self._known: dict[str, TimesOfIncident] = {}

    def hear(self, event: Mapping[str, Any]) -> None:
        """One event more."""
        if len(self._lines) > _LINES_MOST:
            return
        is_step = event["kind"] == "progress"
        self._steps += is_step
        self._lines.append((is_step, msgspec.json.encode(event)))
        if self._steps > self._steps_most:
            self._thin_out()
        self._over = self._over or event["kind"] == "job_ended"
        if event["kind"] in _AT_ONCE:
            self._counted_at_s = None

    def at(self, now_s: float, now_unix_s: float) -> Goodput | Missing:
        """What was counted last, counted anew where that is due; of a job that runs on, up to now."""
        due = self._counted_at_s is None or now_s - self._counted_at_s >= self._pause_s
        if len(self._lines) > _LINES_MOST:
            self._latest = _TOO_MANY
        elif due and self._lines:
            began_s = time.thread_time()
            self._latest = self._count(now_unix_s)
            age_s = 0.0 if isinstance(self._latest, Missing) else sum(self._latest.parts_s.values())
            cost_s = time.thread_time() - began_s
            self._counted_at_s, self._pause_s = now_s, max(min(_EVERY_S, age_s * _OF_AGE), cost_s * _COST_RATIO)
        return self._latest

    def _count(self, now_unix_s: float) -> Goodput | Missing:
        now = () if self._over else (msgspec.json.encode({"at_unix_s": now_unix_s, "kind": "now"}),)
        launch = launch_of("", b"\n".join((*(line for _, line in self._lines), *now)), 0)
        if launch is None:
            return Missing("no event yet")
        account = account_of([launch])
        ratio = account.ettr_ratio
        return Goodput(
            parts_s={str(part): length_s for part, length_s in account.parts_s.items()},
            ratio=None if isinstance(ratio, Missing) else ratio,
            last=self._last(account),
        )

    def _last(self, account: Account) -> TimesOfIncident | None:
        for card in account.cards:
            name = card.incident.incident
            self._known[name] = _first_known(self._known.get(name), card)
        return self._known[account.cards[-1].incident.incident] if account.cards else None

    def _thin_out(self) -> None:
        for edge in _EDGES:
            self._lines = list(_thinned(self._lines, edge))
            self._steps = sum(is_step for is_step, _ in self._lines)
            if self._steps <= _STEPS_MOST // 2:
                break
        self._steps_most = max(_STEPS_MOST, 2 * self._steps)


def _thinned(lines: Iterable[tuple[bool, bytes]], edge: int) -> Iterator[tuple[bool, bytes]]:
    for is_step, alike in groupby(lines, key=itemgetter(0)):
        run = list(alike)
        yield from (*run[:edge], *run[edge:-edge:2], *run[-edge:]) if is_step and len(run) > 2 * edge else run


def _first_known(before: TimesOfIncident | None, card: Card) -> TimesOfIncident:
    """What was known before stands: the steps that told it may have been thinned out since."""
    name_s, recover_s = card.time_to_identify_s, card.time_to_recover_s
    now = TimesOfIncident(
        detect_s=card.time_to_detect_s,
        name_s=None if isinstance(name_s, Missing) else name_s,
        recover_s=None if isinstance(recover_s, Missing) else recover_s,
    )
    if before is None:
        return now
    return TimesOfIncident(
        detect_s=before.detect_s,
        name_s=now.name_s if before.name_s is None else before.name_s,
        recover_s=now.recover_s if before.recover_s is None else before.recover_s,
    )
