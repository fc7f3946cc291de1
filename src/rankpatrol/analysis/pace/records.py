"""What the pace is told, what it remembers, and what it says."""

import msgspec

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Record


class PacePolicy(Record, frozen=True, kw_only=True):
    """When a job counts as slow. False alarms are worse than misses: every bar is set to miss."""

    # Compilation, autotuning and cold caches make the first steps slow.
    warm_up_steps: int = 10
    warm_up_s: float = 5.0
    # What is usual is known after this many intervals and steps; a past longer than this teaches nothing about today.
    past_intervals: int = 12
    past_steps: int = 40
    past_kept: int = 300
    # The window that is compared with it: long enough to be no single evaluation, collection of garbage or long batch.
    window_intervals: int = 8
    window_steps: int = 20
    # Four of five of the window's intervals are slower than this, and than nearly all of the past.
    slower_ratio: float = 1.3
    ahead_of_past_ratio: float = 1.05
    # Looks at what each rank is at begin with this many slow intervals in a row.
    odd_intervals: int = 3
    odd_ratio: float = 1.25
    # A rank holds the others up where in so many of these moments all others waited and it alone did not.
    moments: int = 24
    votes: int = 8
    votes_ratio: float = 0.9
    # What is named as the reason explains at least this part of the time that steps take longer.
    explains_ratio: float = 0.5
    # A host is short of CPUs where ranks wait for one for this part of it, and others use this many CPUs more than before.
    delay_ratio: float = 0.3
    foreign_cpus: float = 0.5
    pressure_ratio: float = 0.1
    contention_after_s: float = 20.0
    # So long it must last before "slow, and nobody can be named" is worth a word.
    unattributable_after_s: float = 60.0
    unattributable_steps: int = 50
    # Back to this is over.
    eased_ratio: float = 1.15
    # Steps counted by log lines come late by up to a second: shorter stretches say nothing.
    inexact_interval_s: float = 5.0


class RankBeat(Record, frozen=True, kw_only=True):
    """One rank's counters: CPU time of its main thread, and time that thread was ready to run and had no CPU (schedstat)."""

    rank: int
    cpu_s: float | None
    delay_s: float | None


class Began(Record, frozen=True, kw_only=True):
    """A new attempt: what is usual has to be learned anew."""

    at_s: float


class Beat(Record, frozen=True, kw_only=True):
    """One round. `steps` are those that all ranks have done, the last of them at `stepped_at_s`; `exact` where probes say so.

    `doing`: what each rank's main thread is at in this moment, `futex` where it waits for its peers (or for a thread of its own).
    `pressure_s`: how long some task has waited for `cpu`, `memory` or `io` (PSI); `foreign_cpu_s`: CPU time of all but the ranks.
    """

    at_s: float
    steps: int
    stepped_at_s: float
    exact: bool
    training: bool = True
    ranks: tuple[RankBeat, ...] = ()
    doing: dict[int, str] = msgspec.field(default_factory=dict)
    pressure_s: dict[str, float] = msgspec.field(default_factory=dict)
    foreign_cpu_s: float | None = None


class Moment(Record, frozen=True, kw_only=True):
    """What each rank's main thread is at, between two rounds: asked for while `PaceState.odd`."""

    doing: dict[int, str]


class Interrupted(Record, frozen=True, kw_only=True):
    """The job stands still, or is held: that is the judge's business, and no pace."""


class Refuted(Record, frozen=True, kw_only=True):
    """Stacks show that whoever was named waits for the others as well: nothing was said, and nobody is named in this attempt."""


PaceEvent = Began | Beat | Moment | Interrupted | Refuted


class Slowed(Record, frozen=True, kw_only=True):
    """The job is slow since `onset_s`."""

    onset_s: float
    diagnosis: Diagnosis


class Eased(Record, frozen=True, kw_only=True):
    """It is as fast as before again."""


PaceFinding = Slowed | Eased


class Votes(Record, frozen=True, kw_only=True):
    """Of `moments`, how often all others waited and this rank alone did not; `does`: what it was at then."""

    moments: int = 0
    alone: dict[int, int] = msgspec.field(default_factory=dict)
    does: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)


class Interval(Record, frozen=True, kw_only=True):
    """Some steps and the time they took; the counters' growth, by rank and by kind of pressure, where they were known."""

    end_s: float
    seconds: float
    steps: int
    cpu_s: dict[int, float] = msgspec.field(default_factory=dict)
    delay_s: dict[int, float] = msgspec.field(default_factory=dict)
    pressure_s: dict[str, float] = msgspec.field(default_factory=dict)
    foreign_cpu_s: float | None = None
    votes: Votes = Votes()

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps


class Spell(Record, frozen=True, kw_only=True):
    """Slow intervals since `onset_s`, and the past they are compared with."""

    onset_s: float
    past: tuple[Interval, ...]
    intervals: tuple[Interval, ...]


class PaceState(Record, frozen=True, kw_only=True):
    """All that is remembered of the attempt. `odd`: moments are wanted now. `told`: once an attempt is enough."""

    began_s: float = 0.0
    anchor: Beat | None = None
    glances: Votes = Votes()
    past: tuple[Interval, ...] = ()
    recent: tuple[Interval, ...] = ()
    votes: Votes = Votes()
    odd: bool = False
    spell: Spell | None = None
    told: bool = False
    open: bool = False
    refuted: bool = False
