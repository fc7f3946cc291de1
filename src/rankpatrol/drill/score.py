"""What a run is worth: the patrol's events against the injector's truth. Pure."""

from collections.abc import Callable

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.outcome import Bars, Outcome, Score
from rankpatrol.drill.rules import complaints, wrong_names

__all__ = ["Bars", "Outcome", "Score", "not_run", "score"]

_HAS_CULPRIT = frozenset(
    {
        Expectation.RECOVERS,
        Expectation.NAMED,
        Expectation.SUSPECTS,
        Expectation.CRASHES,
        Expectation.TIMES_OUT,
        Expectation.NOT_AGAIN,
        Expectation.SLOWED_BY_ONE,
        Expectation.WOULD_END,
        Expectation.KEEPS,
    }
)


def score(outcome: Outcome, bars: Bars) -> Score:
    """Every complaint is a sentence; a mark that cannot be known is None, and is a complaint where a bar hangs on it."""
    marks = _marks(outcome, bars)
    return msgspec.structs.replace(marks, complaints=tuple(complaints(outcome, marks, bars)))


def not_run(fault: str, run: int, seed: str, *, folder: str, why: str) -> Score:
    """The score of a run that could not be done."""
    return Score(fault=fault, run=run, seed=seed, folder=folder, complaints=(why,))


def _marks(outcome: Outcome, bars: Bars) -> Score:
    truth, has_culprit = outcome.told, outcome.expects in _HAS_CULPRIT
    verdict = _first(outcome, lambda event: event.kind == "verdict" and event.verdict == outcome.verdict)
    suspect = _first(outcome, lambda event: has_culprit and event.named is not None and truth.rank in event.named)
    resumed = _first(outcome, lambda event: event.kind == "resumed")
    return Score(
        fault=outcome.fault,
        run=outcome.run,
        seed=outcome.seed,
        expects=outcome.expects,
        bar_s=bars.suspect_s if has_culprit else None,
        rank=truth.rank,
        step=truth.step,
        suspect_s=_since(outcome, suspect),
        verdict_s=_since(outcome, verdict),
        sealed_s=_since(outcome, _first(outcome, lambda event: event.kind == "bundle_sealed")),
        ended_s=_since(outcome, _ended(outcome)),
        onset_off_s=_onset_off_s(outcome, verdict),
        silent_s=None if truth.until_unix_s is None or truth.at_unix_s is None else round(truth.until_unix_s - truth.at_unix_s, 1),
        alerts=sum(event.kind == "alert" for event in outcome.events),
        false_alerts=sum(event.kind == "alert" and event.incident in _recovered(outcome) for event in outcome.events),
        virtual=outcome.virtual,
        caught=verdict is not None and verdict.cause in outcome.causes,
        named_rightly=(suspect is not None or outcome.names_nobody) and not any(wrong_names(outcome)),
        process_named=any(_mentions(event, truth.pids) for event in outcome.events if event.kind in {"alert", "verdict"}),
        resumed_step=None if resumed is None else resumed.step,
        exit_code=None if isinstance(outcome.exit_code, Missing) else outcome.exit_code,
        seconds=outcome.seconds,
        folder=outcome.folder,
    )


def _ended(outcome: Outcome) -> Event | None:
    """The end of the struck attempt; where only the patrol can have ended it, the one that came after its action."""
    if outcome.expects in {Expectation.CRASHES, Expectation.TIMES_OUT}:
        return _first(outcome, lambda event: event.kind == "attempt_ended")
    action = _first(outcome, lambda event: event.kind == "action")
    return _first(outcome, lambda event: event.kind == "attempt_ended" and action is not None and event.at_unix_s >= action.at_unix_s)


def _recovered(outcome: Outcome) -> set[int | str | None]:
    """Incidents that were over by themselves."""
    return {event.incident for event in outcome.events if event.kind == "incident_closed" and event.how == "recovered"}


def _first(outcome: Outcome, wanted: Callable[[Event], bool]) -> Event | None:
    return next((event for event in outcome.events if wanted(event)), None)


def _since(outcome: Outcome, event: Event | None) -> float | None:
    if event is None or isinstance(outcome.onset_unix_s, Missing):
        return None
    return round(event.at_unix_s - outcome.onset_unix_s, 2)


def _onset_off_s(outcome: Outcome, verdict: Event | None) -> float | None:
    if verdict is None or verdict.onset_unix_s is None or isinstance(outcome.onset_unix_s, Missing):
        return None
    return round(verdict.onset_unix_s - outcome.onset_unix_s, 2)


def _mentions(event: Event, pids: tuple[int, ...]) -> bool:
    return not {str(pid) for pid in pids}.isdisjoint((event.sentence or "").replace(",", " ").split())
