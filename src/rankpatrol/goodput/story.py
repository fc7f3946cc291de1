"""One job directory's events as a launch: its attempts one after another, its incidents, its time in the queue. Pure."""

from collections.abc import Iterable
from itertools import islice
from operator import attrgetter, itemgetter, lt
from typing import Any, NamedTuple

from rankpatrol.goodput.reading import count, ranks, read, seconds, text
from rankpatrol.goodput.records import Attempt, Event, Incident, Launch, Moment, Span

_TIME, _STEP, _SECOND = attrgetter("at_unix_s"), attrgetter("step"), itemgetter(1)
# A word about the queue that is told at most this long after its `since` was told as the queue began.
_AT_ONCE_S = 2.0
# A launcher needs minutes to start its ranks at most: an earlier time is another clock's.
_LAUNCHING_MOST_S = 3600.0
# No queue is longer: an earlier time is no time.
_QUEUE_MOST_S = 60 * 86400.0


def launch_of(source: str, content: bytes, number: int) -> Launch | None:
    """The launch that these bytes of events.jsonl tell of, or None where not one event is in them. `number` tells launches apart."""
    told = read(content)
    if told is None:
        return None
    others, remarks = told.others, told.remarks
    started = _first(others, "job_started")
    begin_s, ended = _begin_s(told.span.begin_s, started), _first(others, "job_ended")
    end_s = told.span.end_s if ended is None else ended.at_unix_s
    attempts, said = _attempts(others, told.progress, end_s)
    if ended is None:
        said.append("the job runs on, or its last events are missing: counted up to the last event")
    incidents = _incidents(others, number, begin_s)
    said += [
        f"incident {each.incident} ({each.cause}): the steps went on, so it counts as training" for each in incidents if _goes_on(each)
    ]
    world_size = count(started.ranks) if started else None
    return Launch(
        source=source,
        command=_command(started),
        world_size=world_size or max((len(attempt.nodes) for attempt in attempts), default=0) or None,
        span=Span(begin_s, end_s),
        ended=ended is not None,
        attempts=attempts,
        incidents=tuple(each for each in incidents if not _goes_on(each)),
        queued=_queued(others),
        remarks=(*remarks, *said),
    )


def _first(events: Iterable[Event], kind: str) -> Event | None:
    return next((event for event in events if event.kind == kind), None)


def _begin_s(first_s: float, started: Event | None) -> float:
    """When CMD was launched, where that is told."""
    launched_s = seconds(started.launched_unix_s) if started else None
    known = launched_s is not None and 0 <= first_s - launched_s <= _LAUNCHING_MOST_S
    return launched_s if known and launched_s is not None else first_s


def _command(started: Event | None) -> tuple[str, ...] | None:
    words = started.command if started else None
    return tuple(str(word) for word in words) if isinstance(words, list | tuple) else None


class _Cut(NamedTuple):
    """Where an attempt's events begin and end."""

    number: int
    span: Span
    events: list[Event]
    progress: list[Moment]
    start: Event | None
    end: Event | None


def _attempts(others: Iterable[Event], progress: dict[int, list[Moment]], end_s: float) -> tuple[tuple[Attempt, ...], list[str]]:
    by_number: dict[int, list[Event]] = {number: [] for number in progress}
    for event in others:
        if event.kind in {"attempt_started", "phase", "resumed", "attempt_ended"}:
            by_number.setdefault(event.attempt, []).append(event)
    # Attempts follow one another: what goes by itself cannot begin before the one before it.
    said: list[str] = []
    cuts: list[_Cut] = []
    since_s = 0.0
    for number in sorted(by_number):
        cut = _cut(number, (by_number[number], progress.get(number, [])), end_s)
        begin_s = max(cut.span.begin_s, since_s)
        if cuts and cuts[-1].end is None:
            cuts[-1] = cuts[-1]._replace(span=Span(cuts[-1].span.begin_s, min(_last_s(cuts[-1]), begin_s)))
            said.append(f"no word of the end of attempt {cuts[-1].number}: it is counted up to its last event")
        if cut.start is None:
            said.append(f"no word of the start of attempt {number}: it is counted from its first event")
        cuts.append(cut._replace(span=Span(begin_s, max(begin_s, cut.span.end_s))))
        since_s = max(since_s, begin_s, cut.end.at_unix_s if cut.end else _last_s(cut))
    return tuple(_attempt(cut) for cut in cuts), said


def _cut(number: int, of_it: tuple[list[Event], list[Moment]], end_s: float) -> _Cut:
    events, progress = of_it
    start, end = _first(events, "attempt_started"), _first(events, "attempt_ended")
    begin_s = start.at_unix_s if start else min(each[0].at_unix_s for each in of_it if each)
    stop_s = end.at_unix_s if end else end_s
    return _Cut(number, Span(begin_s, max(begin_s, stop_s)), events, progress, start, end)


def _last_s(cut: _Cut) -> float:
    return max(each[-1].at_unix_s for each in (cut.events, cut.progress) if each)


def _attempt(cut: _Cut) -> Attempt:
    resumed = _first(cut.events, "resumed")
    inside = [event for event in cut.events if cut.span.begin_s <= event.at_unix_s <= cut.span.end_s]
    phases = [event for event in inside if event.kind == "phase" and isinstance(event.phase, str)]
    places = cut.start.ranks if cut.start and isinstance(cut.start.ranks, dict) else {}
    return Attempt(
        number=cut.number,
        span=cut.span,
        reason=text(cut.end.reason, "") or None if cut.end else None,
        nodes=_nodes(places),
        requeued=bool(count(cut.start.scheduler_restarts)) if cut.start else False,
        resumed_step=count(resumed.step) if resumed else None,
        steps=_rising(cut),
        phases=tuple((event.at_unix_s, event.phase) for event in phases),
        checkpoints=tuple(_spans_of("checkpoint", phases, cut.span.end_s)),
        compilations=tuple(_spans_of("compile", phases, cut.span.end_s)),
    )


def _nodes(places: dict[str, Any]) -> dict[int, str]:
    """Each rank's node; of every rank that is told of, so that they can be counted."""
    found = {}
    for rank, place in places.items():
        if rank.isdecimal():
            found[int(rank)] = text(place.get("node"), "?") if isinstance(place, dict) else "?"
    return found


def _rising(cut: _Cut) -> tuple[tuple[float, int], ...]:
    """Progress, as far as it goes beyond what was reached: counters that begin anew with each epoch tell nothing for a while."""
    begin_s, end_s = cut.span.begin_s, cut.span.end_s
    counted = tuple(zip(map(_TIME, cut.progress), map(_STEP, cut.progress), strict=True))
    if _only_rises(counted, begin_s, end_s):
        return counted
    steps: list[tuple[float, int]] = []
    reached = -1
    for event in cut.progress:
        step = event.step
        # A step that another writer spoiled (text, true) is none.
        if type(step) is int and step > reached and begin_s <= (at_s := event.at_unix_s) <= end_s:
            reached = step
            steps.append((at_s, step))
    return tuple(steps)


def _only_rises(counted: tuple[tuple[float, Any], ...], begin_s: float, end_s: float) -> bool:
    """Whether nothing is to be left out, as in nearly every job: told in few passes over millions."""
    if not counted or not begin_s <= counted[0][0] or not counted[-1][0] <= end_s:
        return False
    steps = list(map(_SECOND, counted))
    return set(map(type, steps)) == {int} and steps[0] >= 0 and all(map(lt, steps, islice(steps, 1, None)))


def _spans_of(phase: str, events: Iterable[Event], end_s: float) -> list[Span]:
    """While any rank is in this phase, the job is: the others soon wait for it."""
    inside: set[int | None] = set()
    spans, since_s = [], 0.0
    for event in events:
        rank = count(event.rank)
        before = bool(inside)
        inside = inside | {rank} if event.phase == phase else inside - {rank}
        if inside and not before:
            since_s = event.at_unix_s
        elif before and not inside:
            spans.append(Span(since_s, event.at_unix_s))
    return [*spans, Span(since_s, end_s)] if inside else spans


def _queued(events: Iterable[Event]) -> tuple[Span, ...]:
    """From `since` until it was told, where that was long after; else an open end, which the next attempt closes."""
    found = []
    for event in events:
        since_s = seconds(event.since) if event.kind == "queued" else None
        if since_s is not None and event.at_unix_s - since_s <= _QUEUE_MOST_S:
            told_later = event.at_unix_s - since_s > _AT_ONCE_S
            found.append(Span(since_s, event.at_unix_s if told_later else float("inf")))
    return tuple(found)


def _incidents(events: Iterable[Event], launch: int, begin_s: float) -> tuple[Incident, ...]:
    stories: dict[str, list[Event]] = {}
    signals = [event for event in events if event.kind == "signal"]
    for event in events:
        if event.incident is not None:
            stories.setdefault(str(event.incident), []).append(event)
    found = (_incident((launch, name), story, signals, begin_s) for name, story in stories.items())
    return tuple(sorted((each for each in found if each is not None), key=lambda incident: incident.onset_s))


def _goes_on(incident: Incident) -> bool:
    """A slow job, or one whose loss is no number, takes its steps all the same: nothing stood still and nothing was lost by that."""
    return incident.verdict == "slow" or (incident.verdict is None and incident.cause == "loss_nan")


def _incident(name: tuple[int, str], story: list[Event], signals: list[Event], begin_s: float) -> Incident | None:
    """None where neither its alert nor its verdict is left. An onset before the job itself is none."""
    alert, verdict, closed = (_first(story, kind) for kind in ("alert", "verdict", "incident_closed"))
    told = alert or verdict
    last = verdict or alert
    if told is None or last is None:
        return None
    onsets = (seconds(each.onset_unix_s) for each in (last, told))
    onset_s = min(next((onset for onset in onsets if onset is not None and onset >= begin_s), told.at_unix_s), told.at_unix_s)
    woken = [event.at_unix_s for event in signals if event.attempt == told.attempt and onset_s <= event.at_unix_s <= told.at_unix_s]
    named = [event for event in (alert, verdict) if event is not None and ranks(event.culprit_ranks or event.suspect_ranks)]
    return Incident(
        launch=name[0],
        incident=name[1],
        attempt=told.attempt,
        cause=text(last.cause, "unknown"),
        verdict=text(verdict.verdict, "unknown") if verdict else None,
        sentence=text(last.sentence, ""),
        culprit_ranks=ranks(last.culprit_ranks or last.suspect_ranks),
        onset_s=onset_s,
        detected_s=min(woken, default=told.at_unix_s),
        identified_s=named[0].at_unix_s if named else None,
        closed_s=max(closed.at_unix_s, onset_s) if closed else None,
        how=text(closed.how, "") or None if closed else None,
        acted=any(event.kind == "action" and event.done is True and _ends_something(text(event.what, "")) for event in story),
    )


def _ends_something(what: str) -> bool:
    """Not so the steps before it, which look, and write down where to resume."""
    return what != "resume_from" and not what.startswith("confirm_")
