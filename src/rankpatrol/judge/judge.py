"""The judge keeps time: who stands still for how long, whether looks agree, and when patience is over."""

import math

import msgspec

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.judge.records import (
    AttemptBegan,
    Event,
    Finding,
    Judged,
    JudgeState,
    LookCloser,
    Looked,
    Observed,
    Policy,
    RankActivity,
    Resumed,
    Seen,
    SetAside,
    Suspected,
    TimeoutNears,
)

# A rank that waits for its loader wakes once in 5 s: one switch, and now and then the whole tick in which that falls. One that trains
# does many times more.
_STIRRED_SWITCHES, _STIRRED_TICKS = 3, 2
# Over several seconds the wakes of a poll add up, and seldom is one charged a whole tick. Work comes in bursts of many.
_TICKS_MORE = 0.5
_STIRS_STILL_S = 3.0
_FIRST_STEPS = 3
# What does not end by itself. A crash is looked at here only where a rank left with exit code 0 and others wait for it.
_FINAL = frozenset({"hang", "crash"})


def step(state: JudgeState, event: Event, policy: Policy) -> tuple[JudgeState, tuple[Finding, ...]]:
    """The next state, and what is to be said. A new attempt forgets all but what the job has taught about its silences."""
    match event:
        case AttemptBegan():
            return JudgeState(world_size=event.world_size, step_at_s=event.at_s, learned_s=state.learned_s), ()
        case Observed():
            return _observe(_learn(state, event), event.at_s, policy)
        case Looked():
            return _weigh(state, event, policy)
        case SetAside():
            return _calm(state), ()


def stirred(before: RankActivity, after: RankActivity, over_s: float = 1.0) -> bool:
    """True where the main thread did more in this time than wake from waits. Log bytes do not count: a heartbeat thread writes them too."""
    if after.ended or after.joined != before.joined:
        return True
    if before.marked_steps is not None and after.marked_steps is not None and before.marked_steps != after.marked_steps:
        return True
    more_s = max(0.0, over_s - 1.0)
    if after.main_thread_ticks - before.main_thread_ticks >= _STIRRED_TICKS + _TICKS_MORE * more_s:
        return True
    return after.switches - before.switches >= _STIRRED_SWITCHES * (1.0 + more_s)


def _learn(state: JudgeState, event: Observed) -> JudgeState:
    seen = dict(state.seen)
    for activity in event.ranks:
        before = seen.get(activity.rank)
        seen_at_s = event.at_s if activity.seen_at_s is None else activity.seen_at_s
        if before is None:
            seen[activity.rank] = Seen(activity=activity, stirred_at_s=seen_at_s, seen_at_s=seen_at_s)
        elif activity.seen_at_s is None or seen_at_s > before.seen_at_s:
            over_s = 1.0 if activity.seen_at_s is None else seen_at_s - before.seen_at_s
            stirs = stirred(before.activity, activity, over_s)
            seen[activity.rank] = Seen(activity=activity, stirred_at_s=seen_at_s if stirs else before.stirred_at_s, seen_at_s=seen_at_s)
    state = _learn_steps(state, event)
    ahead = max((activity for activity in event.ranks if activity.step is not None), key=_step_of, default=None)
    if ahead is None or (state.step is not None and _step_of(ahead) <= state.step):
        return msgspec.structs.replace(state, seen=seen)
    step_at_s = event.at_s if ahead.seen_at_s is None else ahead.seen_at_s
    return msgspec.structs.replace(state, seen=seen, step=ahead.step, step_at_s=step_at_s)


def _step_of(activity: RankActivity) -> int:
    return -1 if activity.step is None else activity.step


def _learn_steps(state: JudgeState, event: Observed) -> JudgeState:
    """What a usual step takes, by the ranks' probes, or by what the logs count. The first steps are left out: they compile and warm up."""
    marked = [activity.marked_steps for activity in event.ranks if activity.marked_steps is not None]
    told = [activity.step for activity in event.ranks if activity.step is not None]
    steps = min(marked) if marked and len(marked) == state.world_size else max(told, default=0)
    if steps < _FIRST_STEPS:
        return state
    now = (event.at_s, steps)
    if state.first_marked is None or state.last_marked is None:
        return msgspec.structs.replace(state, first_marked=now, last_marked=now)
    return msgspec.structs.replace(state, last_marked=now) if steps > state.last_marked[1] else state


def _still_budget_s(state: JudgeState, policy: Policy) -> float:
    """How long a rank of this training may stand before it is looked at."""
    if state.first_marked is None or state.last_marked is None or state.last_marked[1] == state.first_marked[1]:
        return policy.still_budget_s
    step_s = (state.last_marked[0] - state.first_marked[0]) / (state.last_marked[1] - state.first_marked[1])
    return min(policy.still_budget_s, max(policy.still_floor_s, policy.still_steps * step_s))


def _observe(state: JudgeState, at_s: float, policy: Policy) -> tuple[JudgeState, tuple[Finding, ...]]:
    if _out_of_sight(state):
        return state, ()
    if _held(state):
        return _excused(state, at_s), ()
    still = _still(state, at_s, policy)
    if not still:
        return _calm(_learned(state, at_s)), (Resumed(at_s=at_s),) if state.suspected else ()
    if at_s < _next_look_s(state, policy):
        return state, ()
    longest = max(still, key=lambda seen: seen.still_s)
    why = f"rank {longest.activity.rank} has not stirred for {longest.still_s:.0f} s"
    return msgspec.structs.replace(state, looked_at_s=at_s, silent_since_s=longest.stirred_at_s), (LookCloser(why=why),)


def _next_look_s(state: JudgeState, policy: Policy) -> float:
    if state.looked_at_s is None:
        return -math.inf
    return min(state.looked_at_s + _look_again_after_s(state, policy), _patience_ends_s(state, policy))


def _look_again_after_s(state: JudgeState, policy: Policy) -> float:
    if state.suspected:
        return policy.watch_every_s
    unconfirmed = len(state.agreeing) == 1 and state.agreeing[0].verdict in _FINAL
    return policy.confirm_after_s if unconfirmed else policy.look_every_s


def _patience_ends_s(state: JudgeState, policy: Policy) -> float:
    """When a look will find patience over, if what the last one saw goes on; infinite where that look came after it, or judges nothing."""
    last = state.agreeing[-1] if state.agreeing else None
    if last is None or state.looked_at_s is None or not state.suspected or state.judged or not _may_be_judged(last):
        return math.inf
    ends_s = _quiet_since_s(state, last, _onset(state, last)) + _patience_s(state, policy)
    return ends_s if ends_s > state.looked_at_s else math.inf


def _out_of_sight(state: JudgeState) -> bool:
    """A rank is missing or has failed, or all have ended: neither a stall nor its end can be told from the others."""
    activities = [seen.activity for seen in state.seen.values()]
    if len(activities) < state.world_size or any(activity.failed for activity in activities):
        return True
    return all(activity.ended for activity in activities)


def _held(state: JudgeState) -> bool:
    """Somebody debugs a rank, or the job is suspended as a whole, by a scheduler or a user."""
    activities = [seen.activity for seen in _alive(state)]
    return any(activity.traced for activity in activities) or all(activity.stopped for activity in activities)


def _alive(state: JudgeState) -> list[Seen]:
    return [seen for seen in state.seen.values() if not seen.activity.ended]


def _excused(state: JudgeState, at_s: float) -> JudgeState:
    """Time in which the job was held counts against nobody."""
    return msgspec.structs.replace(
        state,
        seen={rank: msgspec.structs.replace(seen, stirred_at_s=max(at_s, seen.seen_at_s)) for rank, seen in state.seen.items()},
        step_at_s=at_s,
    )


def _still(state: JudgeState, at_s: float, policy: Policy) -> tuple[Seen, ...]:
    """Ranks that stand still beyond their budget; none while steps go on."""
    alive = _alive(state)
    joined = all(seen.activity.joined for seen in alive)
    budget_s = _still_budget_s(state, policy) if joined else policy.starting_budget_s
    # Whoever counts steps may be seen seldom: that it counted no more is known up to then.
    counted_until_s = max((seen.seen_at_s for seen in alive if seen.activity.step is not None), default=at_s)
    if state.step is not None and counted_until_s - state.step_at_s < budget_s:
        return ()
    return tuple(seen for seen in alive if seen.still_s >= budget_s)


def phase_of(state: JudgeState) -> str:
    """What the attempt is in: by its probes where they agree, else from outside: no group yet, no step yet, or training."""
    marked = {seen.activity.phase for seen in _alive(state)}
    if len(marked) == 1 and (phase := marked.pop()) is not None:
        return phase
    if not all(seen.activity.joined for seen in _alive(state)):
        return "initialisation" if state.step is None else "teardown"
    return "first_step" if state.step is None else "train_step"


def _learned(state: JudgeState, at_s: float) -> JudgeState:
    """A silence has ended by itself: the next one in this phase may last as long and half as long again."""
    if state.looked_at_s is None or state.silent_since_s is None:
        return state
    phase = state.stall_phase or phase_of(state)
    longest_s = max(state.learned_s.get(phase, 0.0), at_s - state.silent_since_s)
    return msgspec.structs.replace(state, learned_s={**state.learned_s, phase: longest_s})


def _allowed_s(state: JudgeState, phase: str, policy: Policy) -> float:
    """The silence that this job has taught to expect in a phase."""
    return min(policy.learned_ceiling_s, policy.learned_factor * state.learned_s.get(phase, 0.0))


def _calm(state: JudgeState) -> JudgeState:
    return msgspec.structs.replace(
        state,
        looked_at_s=None,
        silent_since_s=None,
        agreeing=(),
        worked_at_s=None,
        suspected=False,
        judged=False,
        timeout_told=False,
        stall_phase=None,
    )


def _weigh(state: JudgeState, event: Looked, policy: Policy) -> tuple[JudgeState, tuple[Finding, ...]]:
    diagnosis = event.diagnosis
    if state.looked_at_s is None:
        return state, ()  # it began to move again while we looked
    if diagnosis.verdict not in _FINAL:
        state = msgspec.structs.replace(state, worked_at_s=event.at_s)
    phase = diagnosis.phase or phase_of(state)
    agreeing = (*state.agreeing, diagnosis) if _agree(state.agreeing, diagnosis) else (diagnosis,)
    state = msgspec.structs.replace(state, agreeing=agreeing[-policy.agreeing_looks :], stall_phase=phase)
    if len(state.agreeing) < policy.agreeing_looks:
        return state, ()
    onset_s = _onset(state, diagnosis)
    findings: list[Finding] = []
    nears = _timeout_nears(state, event, policy)
    if not state.suspected and (nears or event.at_s - onset_s >= _alert_after_s(state, diagnosis, phase, policy)):
        findings.append(Suspected(onset_s=onset_s, diagnosis=diagnosis, phase=phase, quiet=phase in state.alerted))
        state = msgspec.structs.replace(state, suspected=True, alerted=state.alerted | {phase})
    if state.suspected and not state.judged and _is_hang(state, event, onset_s, policy):
        findings.append(Judged(onset_s=onset_s, diagnosis=diagnosis))
        state = msgspec.structs.replace(state, judged=True)
    elif nears and not state.judged:
        findings.append(nears)
        state = msgspec.structs.replace(state, timeout_told=True)
    return state, tuple(findings)


def _timeout_nears(state: JudgeState, event: Looked, policy: Policy) -> TimeoutNears | None:
    """Counted from where each victim stood still, which is never before it entered its collective."""
    if state.timeout_told:
        return None
    victims = [state.seen[rank] for rank in event.diagnosis.victim_ranks if rank in state.seen]
    fires = [
        TimeoutNears(fires_in_s=seen.stirred_at_s + seen.activity.group_timeout_s - event.at_s, timeout_s=seen.activity.group_timeout_s)
        for seen in victims
        if seen.activity.group_timeout_s is not None
    ]
    first = min(fires, key=lambda each: each.fires_in_s, default=None)
    if first is None:
        return None
    margin_s = min(policy.timeout_margin_s, max(policy.timeout_margin_floor_s, first.timeout_s / 3))
    return first if first.fires_in_s <= margin_s else None


def _alert_after_s(state: JudgeState, diagnosis: Diagnosis, phase: str, policy: Policy) -> float:
    """How long a silence must last before people hear of it; where nobody can be named, as long as patience lasts."""
    floor_s = {"benign_wait": policy.benign_alert_s, "undetermined": policy.patience_s}.get(diagnosis.verdict, 0.0)
    return max(_allowed_s(state, phase, policy), floor_s)


def _named(diagnosis: Diagnosis) -> tuple[int, ...] | None:
    return diagnosis.culprit_ranks or diagnosis.awaited_ranks


def _agree(earlier: tuple[Diagnosis, ...], diagnosis: Diagnosis) -> bool:
    return bool(earlier) and (earlier[-1].cause, _named(earlier[-1])) == (diagnosis.cause, _named(diagnosis))


def _onset(state: JudgeState, diagnosis: Diagnosis) -> float:
    """The latest sign of progress of those who are named; one that still stirs has no such end, so its victims' stands for it."""
    named = [state.seen[rank] for rank in _named(diagnosis) or () if rank in state.seen]
    if not named and state.silent_since_s is not None:
        return state.silent_since_s
    victims = [state.seen[rank] for rank in diagnosis.victim_ranks if rank in state.seen]
    latest = max((seen.stirred_at_s for seen in named), default=0.0)
    first_victim = min((seen.stirred_at_s for seen in victims), default=latest)
    return latest if state.looked_at_s is None or latest < state.looked_at_s - _STIRS_STILL_S else min(latest, first_victim)


def _is_hang(state: JudgeState, event: Looked, onset_s: float, policy: Policy) -> bool:
    """Patience counts from the last work of whoever is awaited; what is only suspected is never judged."""
    diagnosis = event.diagnosis
    if not _may_be_judged(diagnosis):
        return False
    if diagnosis.certainty is Certainty.PROVED:
        return True
    return event.at_s - _quiet_since_s(state, diagnosis, onset_s) >= _patience_s(state, policy)


def _may_be_judged(diagnosis: Diagnosis) -> bool:
    return diagnosis.verdict in _FINAL and diagnosis.certainty is not Certainty.SUSPECTED


def _quiet_since_s(state: JudgeState, diagnosis: Diagnosis, onset_s: float) -> float:
    """A look that could not tell yet counts as work, until enough looks show that none of them saw any."""
    worked_at_s = state.worked_at_s if diagnosis.quiet_since_mono_s is None else diagnosis.quiet_since_mono_s
    return onset_s if worked_at_s is None else max(onset_s, worked_at_s)


def _patience_s(state: JudgeState, policy: Policy) -> float:
    """The policy's patience, longer in checkpoints, and never shorter than what the job has taught."""
    phase = state.stall_phase or phase_of(state)
    factor = policy.checkpoint_patience_factor if phase == "checkpoint" else 1.0
    return max(policy.patience_s * factor, _allowed_s(state, phase, policy))
