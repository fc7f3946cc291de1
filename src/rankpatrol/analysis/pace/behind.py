"""What is behind a slow spell: one rank that the others wait for, a host short of CPUs, or nothing that can be told.

All ranks of a synchronous job have the same step time: who is late shows in who waits least. In a moment in which all others wait and one
rank does not, they wait for it; how often that is, times the step time, is how long it holds them up.
"""

from rankpatrol.analysis.pace.records import Interval, PacePolicy, Spell, Votes
from rankpatrol.analysis.pace.sums import cpu_s, delay_s, foreign_cpus, glances, pressure, quantile, ranks_of, step_s
from rankpatrol.core.diagnosis import Certainty, Diagnosis

# A past of so many moments shows whether one rank was waited for all along.
_GLANCES = 12
# One more or one fewer of these is chance (the two of Agresti and Coull's interval).
_CHANCE = 2
_PRESSURES = {"cpu": "a CPU", "memory": "memory", "io": "storage"}
_LOOK_EVERYWHERE = (
    "All ranks may do more in a step (longer inputs, a larger model). Else look at clocks and temperatures of all GPUs, "
    "links and shared storage."
)


def behind(spell: Spell, votes: Votes, policy: PacePolicy, *, name: bool = True) -> Diagnosis | None:
    """The diagnosis, or None while it is too early for one. `name`: a rank may be named."""
    return (_straggler(spell, votes, policy) if name else None) or _contention(spell, policy) or _nobody(spell, votes, policy)


def _straggler(spell: Spell, votes: Votes, policy: PacePolicy) -> Diagnosis | None:
    """Two lines must agree: its peers wait for it now, and its own past shows that they did not (or that it computed less)."""
    if votes.moments < policy.moments or not votes.alone:
        return None
    rank = max(votes.alone, key=lambda each: votes.alone[each])
    mine, usual_s, now_s = votes.alone[rank], step_s(spell.past), step_s(spell.intervals)
    extra_s = now_s - usual_s
    held_s = mine / votes.moments * now_s - _held_before_s(spell, rank)
    surely_s = _at_least(mine, votes.moments) * now_s - _at_most_before(spell, rank) * usual_s
    if mine < policy.votes or mine < policy.votes_ratio * sum(votes.alone.values()) or surely_s < policy.explains_ratio * extra_s:
        return None
    if (_more_delay_s(spell, rank) or 0.0) >= policy.explains_ratio * extra_s:
        return None  # it is late because it gets no CPU: that is not its own doing
    own = _own_past(spell, votes, rank, extra_s, policy)
    if own is None:
        return None
    does = votes.does.get(rank, {})
    what = max(does, key=lambda each: does[each]) if does else "unknown"
    others = tuple(each for each in ranks_of(spell.intervals) if each != rank)
    return Diagnosis(
        verdict="slow",
        cause="straggler",
        culprit_ranks=(rank,),
        victim_ranks=others,
        certainty=Certainty.SUPPORTED,
        sentence=f"the others wait for rank {rank}: {_longer(spell)}; it {_say_doing(what)} while they wait",
        reasons_for=(
            f"in {mine} of {votes.moments} moments all other ranks waited at once, and only rank {rank} did not ({_tally(does)})",
            f"so the others wait {held_s:.2f} s of each step for it; steps take {extra_s:.2f} s longer",
            own,
            _series(spell),
        ),
        reasons_against=_against(spell, rank, policy),
        suggested=(f"Look at what rank {rank} does more than the others: its data, its logging and saving, its node's clocks and CPUs.",),
    )


def _held_before_s(spell: Spell, rank: int) -> float:
    before = glances(spell.past)
    return before.alone.get(rank, 0) / before.moments * step_s(spell.past) if before.moments else 0.0


def _at_least(count: int, moments: int) -> float:
    """What a share of few moments is at least: moments are a sample."""
    return max(0, count - _CHANCE) / moments


def _at_most_before(spell: Spell, rank: int) -> float:
    """In which part of its past the others waited for this rank alone, at most; half of it where nobody looked."""
    before = glances(spell.past)
    return (before.alone.get(rank, 0) + _CHANCE) / (before.moments + 2 * _CHANCE)


def _own_past(spell: Spell, votes: Votes, rank: int, extra_s: float, policy: PacePolicy) -> str | None:
    """The second line, or None where its past does not bear it out."""
    cpu = _more_cpu_s(spell, rank)
    peers = [more for each in ranks_of(spell.intervals) if each != rank and (more := _more_cpu_s(spell, each)) is not None]
    if cpu is not None and peers and cpu >= policy.explains_ratio * extra_s and quantile(peers, 0.5) < policy.explains_ratio / 2 * extra_s:
        return f"its main thread computes {cpu:.2f} s more in a step than before, the others' {quantile(peers, 0.5):.2f} s"
    before = glances(spell.past)
    if before.moments < _GLANCES:
        return None
    was, now = before.alone.get(rank, 0) / before.moments, votes.alone[rank] / votes.moments
    if _at_most_before(spell, rank) > _at_least(votes.alone[rank], votes.moments) / 2:
        return None
    return f"before, it was so in {was:.0%} of {before.moments} moments; now in {now:.0%}"


def _contention(spell: Spell, policy: PacePolicy) -> Diagnosis | None:
    """Ranks wait for a CPU, and others use more of them than before: the host is short of CPUs, whoever is to blame for that."""
    if _lasted_s(spell) < policy.contention_after_s:
        return None
    extra_s = step_s(spell.intervals) - step_s(spell.past)
    delays = [more for rank in ranks_of(spell.intervals) if (more := _more_delay_s(spell, rank)) is not None]
    outside = _outside(spell, policy)
    if not delays or outside is None or sum(delays) / len(delays) < policy.delay_ratio * extra_s:
        return None
    mean_s = sum(delays) / len(delays)
    return Diagnosis(
        verdict="slow",
        cause="host_contention",
        certainty=Certainty.SUPPORTED,
        sentence=f"the machine is short of CPUs: {_longer(spell)}, and ranks wait {mean_s:.2f} s of it for a CPU",
        reasons_for=(
            f"each rank waits {min(delays):.2f} to {max(delays):.2f} s more in a step for a CPU than before",
            outside,
            _series(spell),
        ),
        suggested=("Look for other programs on this machine (top), and give the job CPUs of its own (cgroup, --cpus-per-task).",),
    )


def _outside(spell: Spell, policy: PacePolicy) -> str | None:
    """The second line: what the machine says."""
    was, now = foreign_cpus(spell.past), foreign_cpus(spell.intervals)
    if was is not None and now is not None and now - was >= policy.foreign_cpus:
        return f"programs other than the ranks use {now:.1f} CPUs, before {was:.1f}"
    return _pressed(spell, "cpu", policy)


def _pressed(spell: Spell, kind: str, policy: PacePolicy) -> str | None:
    """The kernel's own word for a machine that has become short of something."""
    before, after = pressure(spell.past, kind), pressure(spell.intervals, kind)
    if before is None or after is None or after - before < policy.pressure_ratio:
        return None
    return f"some task waits for {_PRESSURES[kind]} in {after:.0%} of the time (PSI), before in {before:.0%}"


def _beside(spell: Spell, policy: PacePolicy) -> tuple[str, ...]:
    """What else of the machine has changed; it may be the reason, or its outcome."""
    return tuple(said for kind in ("memory", "io") if (said := _pressed(spell, kind, policy)) is not None)


def _nobody(spell: Spell, votes: Votes, policy: PacePolicy) -> Diagnosis | None:
    if _lasted_s(spell) < policy.unattributable_after_s or sum(each.steps for each in spell.intervals) < policy.unattributable_steps:
        return None
    alone = max(votes.alone.values(), default=0)
    moments = (f"in {votes.moments} moments no rank alone was waited for (at most in {alone})",) if votes.moments else ()
    return Diagnosis(
        verdict="slow",
        cause="straggler_unattributable",
        certainty=Certainty.SUSPECTED,
        sentence=f"the job is slow, and the evidence names nobody: {_longer(spell)}",
        reasons_for=(_series(spell), *moments, *_beside(spell, policy)),
        suggested=(_LOOK_EVERYWHERE,),
    )


def _against(spell: Spell, rank: int, policy: PacePolicy) -> tuple[str, ...]:
    delay = _more_delay_s(spell, rank)
    waits = (f"its main thread waits {delay:.2f} s more in a step for a CPU than before",) if delay is not None and delay > 0.01 else ()
    outside = _outside(spell, policy)
    return (*waits, *(() if outside is None else (outside,)), *_beside(spell, policy))


def _more_delay_s(spell: Spell, rank: int) -> float | None:
    before, now = delay_s(spell.past, rank), delay_s(spell.intervals, rank)
    return None if before is None or now is None else now - before


def _more_cpu_s(spell: Spell, rank: int) -> float | None:
    before, now = cpu_s(spell.past, rank), cpu_s(spell.intervals, rank)
    return None if before is None or now is None else now - before


def _lasted_s(spell: Spell) -> float:
    return spell.intervals[-1].end_s - spell.onset_s


def _longer(spell: Spell) -> str:
    usual_s, now_s = step_s(spell.past), step_s(spell.intervals)
    return f"a step takes {now_s:.2f} s, before {usual_s:.2f} s ({now_s / usual_s - 1:.0%} longer)"


def _series(spell: Spell) -> str:
    """The step times around the change, for people."""
    before, since = _times(spell.past[-6:]), _times(spell.intervals[-12:])
    return f"step times in s, interval by interval: {before} | {since}"


def _times(intervals: tuple[Interval, ...]) -> str:
    return " ".join(f"{each.step_s:.2f}" for each in intervals)


def _tally(does: dict[str, int]) -> str:
    return ", ".join(f"{_say_doing(what)} {count} times" for what, count in sorted(does.items(), key=lambda each: -each[1])[:3])


_DOINGS = {
    "running": "computes",
    "clock_nanosleep": "sleeps",
    "nanosleep": "sleeps",
    "read": "reads",
    "pread64": "reads",
    "write": "writes",
    "fsync": "flushes to storage",
    "poll": "waits for data",
    "ppoll": "waits for data",
    "select": "waits for data",
    "epoll_wait": "waits for data",
}


def _say_doing(what: str) -> str:
    return _DOINGS.get(what, f"is in {what}")
