"""Sums over intervals: all per step, so that slow and quick times compare."""

from collections.abc import Iterable, Sequence

from rankpatrol.analysis.pace.records import Interval, Votes


def quantile(values: Sequence[float], part: float) -> float:
    """The value that this part of them does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def step_s(intervals: Sequence[Interval]) -> float:
    """The usual time of a step."""
    return quantile([each.step_s for each in intervals], 0.5)


def delay_s(intervals: Iterable[Interval], rank: int) -> float | None:
    """How long this rank's main thread waits for a CPU in one step; None where that is not known."""
    known = [(each.delay_s[rank], each.steps) for each in intervals if rank in each.delay_s]
    return sum(seconds for seconds, _ in known) / sum(steps for _, steps in known) if known else None


def cpu_s(intervals: Iterable[Interval], rank: int) -> float | None:
    """How much CPU this rank's main thread uses in one step; None where that is not known."""
    known = [(each.cpu_s[rank], each.steps) for each in intervals if rank in each.cpu_s]
    return sum(seconds for seconds, _ in known) / sum(steps for _, steps in known) if known else None


def foreign_cpus(intervals: Iterable[Interval]) -> float | None:
    """How many CPUs all but the ranks keep busy; None where that is not known."""
    known = [(each.foreign_cpu_s, each.seconds) for each in intervals if each.foreign_cpu_s is not None]
    return sum(used for used, _ in known) / sum(seconds for _, seconds in known) if known else None


def pressure(intervals: Iterable[Interval], kind: str) -> float | None:
    """In which part of the time some task of the machine waits for `cpu`, `memory` or `io`; None where that is not known."""
    known = [(each.pressure_s[kind], each.seconds) for each in intervals if kind in each.pressure_s]
    return sum(waited for waited, _ in known) / sum(seconds for _, seconds in known) if known else None


def ranks_of(intervals: Iterable[Interval]) -> tuple[int, ...]:
    """Every rank that is known of."""
    return tuple(sorted({rank for each in intervals for rank in {*each.cpu_s, *each.delay_s, *each.votes.alone}}))


def glances(intervals: Iterable[Interval]) -> Votes:
    """All moments of these intervals together."""
    alone: dict[int, int] = {}
    moments = 0
    for each in intervals:
        moments += each.votes.moments
        for rank, count in each.votes.alone.items():
            alone[rank] = alone.get(rank, 0) + count
    return Votes(moments=moments, alone=alone)
