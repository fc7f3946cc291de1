"""Change points of step time against the job's own past. Who or what is behind one, `behind.py` says."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

from rankpatrol.analysis.pace.behind import behind
from rankpatrol.analysis.pace.records import (
    Beat,
    Began,
    Eased,
    Interrupted,
    Interval,
    Moment,
    PaceEvent,
    PaceFinding,
    PacePolicy,
    PaceState,
    RankBeat,
    Refuted,
    Slowed,
    Spell,
    Votes,
)
from rankpatrol.analysis.pace.sums import quantile

WAITS = "futex"
K = TypeVar("K", int, str)
Outcome = tuple[PaceState, tuple[PaceFinding, ...]]


def step(state: PaceState, event: PaceEvent, policy: PacePolicy) -> Outcome:
    """The next state, and what is to be said: at most one slow spell an attempt, and its end."""
    match event:
        case Began():
            return PaceState(began_s=event.at_s), ()
        case Interrupted():
            return replace(state, anchor=None, glances=Votes()), ()
        case Moment():
            return replace(state, votes=counted(state.votes, event.doing)) if state.odd else state, ()
        case Refuted():
            return replace(state, refuted=True, told=False, open=False), ()
        case Beat():
            return _beat(state, event, policy)


def counted(votes: Votes, doing: dict[int, str]) -> Votes:
    """One more moment. A rank is alone where it does not wait and all others do; one that sleeps or reads makes them wait as well."""
    if len(doing) < 2:
        return votes
    busy = [rank for rank, what in doing.items() if what != WAITS]
    alone, does = dict(votes.alone), dict(votes.does)
    if len(busy) == 1:
        rank = busy[0]
        alone[rank] = alone.get(rank, 0) + 1
        does[rank] = {**does.get(rank, {}), doing[rank]: does.get(rank, {}).get(doing[rank], 0) + 1}
    return Votes(moments=votes.moments + 1, alone=alone, does=does)


def _beat(state: PaceState, beat: Beat, policy: PacePolicy) -> Outcome:
    anchor = state.anchor
    if anchor is None or beat.steps < anchor.steps or beat.exact != anchor.exact or not beat.training:
        return replace(state, anchor=beat if beat.training else None, glances=Votes()), ()
    state = replace(state, glances=counted(state.glances, beat.doing), votes=counted(state.votes, beat.doing) if state.odd else state.votes)
    interval = _interval(anchor, beat, state.glances, policy)
    if interval is None:
        return state, ()
    state = replace(state, anchor=beat, glances=Votes())
    if beat.steps <= policy.warm_up_steps or beat.at_s - state.began_s < policy.warm_up_s:
        return state, ()
    return _weigh(_remember(state, interval, policy), policy)


def _interval(anchor: Beat, beat: Beat, glances: Votes, policy: PacePolicy) -> Interval | None:
    steps, seconds = beat.steps - anchor.steps, beat.stepped_at_s - anchor.stepped_at_s
    if steps <= 0 or seconds <= 0 or (not beat.exact and seconds < policy.inexact_interval_s):
        return None
    return Interval(
        end_s=beat.stepped_at_s,
        seconds=seconds,
        steps=steps,
        cpu_s=_grown({each.rank: each.cpu_s for each in anchor.ranks}, {each.rank: each.cpu_s for each in beat.ranks}),
        delay_s=_grown(_delays(anchor.ranks), _delays(beat.ranks)),
        pressure_s=_grown(anchor.pressure_s, beat.pressure_s),
        foreign_cpu_s=_more(anchor.foreign_cpu_s, beat.foreign_cpu_s),
        votes=glances,
    )


def _delays(ranks: tuple[RankBeat, ...]) -> dict[int, float | None]:
    return {each.rank: each.delay_s for each in ranks}


def _grown(before: Mapping[K, float | None], after: Mapping[K, float | None]) -> dict[K, float]:
    grown = {key: _more(before.get(key), now) for key, now in after.items()}
    return {key: by for key, by in grown.items() if by is not None}


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _remember(state: PaceState, interval: Interval, policy: PacePolicy) -> PaceState:
    """The window slides; what leaves it is past. In a spell nothing becomes past: its own time is no yardstick for it."""
    recent = (*state.recent, interval)
    past = state.past
    while len(recent) > policy.window_intervals and sum(each.steps for each in recent[1:]) >= policy.window_steps:
        past, recent = (past if state.spell else (*past, recent[0])), recent[1:]
    return replace(state, past=past[-policy.past_kept :], recent=recent)


def _weigh(state: PaceState, policy: PacePolicy) -> Outcome:
    if state.spell is None and not _known(state.past, policy):
        return state, ()
    past = state.spell.past if state.spell else state.past
    state = _watch_closer(state, past, policy)
    slow = _is_slow(state.recent, past, policy)
    if state.open:
        return _eases(state, past, policy)
    if state.told or not slow:
        return replace(state, spell=None), ()
    spell = state.spell or Spell(onset_s=_onset_s(state.recent, past, policy), past=past, intervals=state.recent)
    if state.spell is not None:
        spell = replace(spell, intervals=(*spell.intervals, state.recent[-1]))
    state = replace(state, spell=spell)
    found = behind(spell, state.votes, policy, name=not state.refuted)
    if found is None:
        return state, ()
    return replace(state, told=True, open=True, votes=Votes(), odd=False), (Slowed(onset_s=spell.onset_s, diagnosis=found),)


def _known(past: tuple[Interval, ...], policy: PacePolicy) -> bool:
    return len(past) >= policy.past_intervals and sum(each.steps for each in past) >= policy.past_steps


def _watch_closer(state: PaceState, past: tuple[Interval, ...], policy: PacePolicy) -> PaceState:
    """Moments are wanted from the first slow intervals on, and only as long as they follow one another."""
    bar_s = max(policy.odd_ratio * _usual_s(past), _upper_s(past))
    last = state.recent[-policy.odd_intervals :]
    slow = len(last) == policy.odd_intervals and all(each.step_s >= bar_s for each in last)
    odd = not state.told and (slow or state.spell is not None)
    return state if odd == state.odd else replace(state, odd=odd, votes=Votes())


def _is_slow(recent: tuple[Interval, ...], past: tuple[Interval, ...], policy: PacePolicy) -> bool:
    """Nearly the whole window lies above the usual, and above nearly all of the past: some long steps do not make a slow job."""
    if len(recent) < policy.window_intervals or sum(each.steps for each in recent) < policy.window_steps:
        return False
    bar_s = max(policy.slower_ratio * _usual_s(past), policy.ahead_of_past_ratio * _upper_s(past))
    return quantile([each.step_s for each in recent], 0.2) >= bar_s


def _usual_s(past: tuple[Interval, ...]) -> float:
    return quantile([each.step_s for each in past], 0.5)


def _upper_s(past: tuple[Interval, ...]) -> float:
    """What nearly all of the past stays below; with few intervals one or two may lie above it."""
    return quantile([each.step_s for each in past], 0.95 if len(past) >= 40 else 0.9)


def _onset_s(recent: tuple[Interval, ...], past: tuple[Interval, ...], policy: PacePolicy) -> float:
    """The begin of the first slow interval of the window."""
    bar_s = policy.odd_ratio * _usual_s(past)
    first = next((each for each in recent if each.step_s >= bar_s), recent[0])
    return first.end_s - first.seconds


def _eases(state: PaceState, past: tuple[Interval, ...], policy: PacePolicy) -> Outcome:
    if quantile([each.step_s for each in state.recent], 0.5) > policy.eased_ratio * _usual_s(past):
        return state, ()
    return replace(state, open=False, spell=None), (Eased(),)
