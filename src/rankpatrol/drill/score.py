"""What a run is worth: the patrol's events against the injector's truth. Pure."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from rankpatrol.core.records import Missing, Record
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.truth import Truth


class Bars(Record, frozen=True, kw_only=True):
    """What is demanded, counted from the onset."""

    suspect_s: float = 15.0
    ended_s: float = 40.0


class Outcome(Record, frozen=True, kw_only=True):
    """All that is known when a run is over. Bundle paths lead to whether `rankpatrol bundle verify` accepted them."""

    fault: str
    expects: Expectation
    verdict: str
    causes: tuple[str, ...]
    run: int
    seed: str
    truth: Truth | Missing
    onset_unix_s: float | Missing
    ended_unix_s: float
    resume_step: int | None
    events: tuple[Event, ...]
    exit_code: int | Missing
    finished: bool
    bundles: Mapping[str, bool]
    left: tuple[str, ...]
    seconds: float
    folder: str


class Score(Record, frozen=True, kw_only=True):
    """One run's marks, in seconds from the onset. It passed when there is no complaint.

    `onset_off_s`: how much later the verdict puts the onset than the truth does. `recovers`: the drill has a culprit to be caught.
    """

    fault: str
    run: int
    seed: str
    folder: str
    rank: int | None = None
    step: int | None = None
    suspect_s: float | None = None
    verdict_s: float | None = None
    sealed_s: float | None = None
    ended_s: float | None = None
    onset_off_s: float | None = None
    recovers: bool = True
    caught: bool = False
    named_rightly: bool = False
    process_named: bool = False
    resumed_step: int | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    complaints: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.complaints


def score(outcome: Outcome, bars: Bars) -> Score:
    """Every complaint is a sentence; a mark that cannot be known is None, and is a complaint where a bar hangs on it."""
    truth = outcome.truth if isinstance(outcome.truth, Truth) else Truth()
    verdict = _first(outcome, lambda event: event.kind == "verdict" and event.verdict == outcome.verdict)
    suspect = _first(outcome, lambda event: event.named is not None and truth.rank in event.named)
    action = _first(outcome, lambda event: event.kind == "action")
    ended = _first(outcome, lambda event: event.kind == "attempt_ended" and action is not None and event.at_unix_s >= action.at_unix_s)
    sealed = _first(outcome, lambda event: event.kind == "bundle_sealed")
    resumed = _first(outcome, lambda event: event.kind == "resumed")
    marks = Score(
        fault=outcome.fault,
        run=outcome.run,
        seed=outcome.seed,
        rank=truth.rank,
        step=truth.step,
        suspect_s=_since(outcome, suspect),
        verdict_s=_since(outcome, verdict),
        sealed_s=_since(outcome, sealed),
        ended_s=_since(outcome, ended),
        onset_off_s=_onset_off_s(outcome, verdict),
        recovers=outcome.expects is Expectation.RECOVERS,
        caught=verdict is not None and verdict.cause in outcome.causes,
        named_rightly=suspect is not None and not any(_wrong_names(outcome, truth)),
        process_named=any(_mentions(event, truth.pid) for event in outcome.events if event.kind in {"alert", "verdict"}),
        resumed_step=None if resumed is None else resumed.step,
        exit_code=None if isinstance(outcome.exit_code, Missing) else outcome.exit_code,
        seconds=outcome.seconds,
        folder=outcome.folder,
    )
    rules = {Expectation.RECOVERS: _recovers, Expectation.ENDS_WELL: _ends_well, Expectation.FAILS: _fails, Expectation.STOPS: _stops}
    complaints = (*_always(outcome), *rules[outcome.expects](outcome, marks, bars))
    return msgspec.structs.replace(marks, complaints=complaints)


def not_run(fault: str, run: int, seed: str, *, folder: str, why: str) -> Score:
    """The score of a run that could not be done."""
    return Score(fault=fault, run=run, seed=seed, folder=folder, complaints=(why,))


def _always(outcome: Outcome) -> Iterator[str]:
    if isinstance(outcome.truth, Missing):
        yield outcome.truth.reason
    if isinstance(outcome.exit_code, Missing):
        yield outcome.exit_code.reason
    for process in outcome.left:
        yield f"left behind: {process}"
    for at, event in enumerate(outcome.events):
        if event.kind == "action":
            yield from _acted_blindly(outcome, event, outcome.events[:at])


def _acted_blindly(outcome: Outcome, action: Event, before: tuple[Event, ...]) -> Iterator[str]:
    """An action needs the sealed bundle of its own incident, and that bundle has to stand."""
    sealed = [event for event in before if event.kind == "bundle_sealed" and event.incident == action.incident and event.path]
    if not any(event.at_unix_s <= action.at_unix_s for event in sealed):
        yield f"acted ({action.what}) before the bundle of incident {action.incident} was sealed"
    for event in sealed:
        if not outcome.bundles.get(event.path or "", False):
            yield f"the bundle {event.path} does not verify"


def _recovers(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    truth = outcome.truth if isinstance(outcome.truth, Truth) else Truth()
    if isinstance(outcome.onset_unix_s, Missing):
        yield outcome.onset_unix_s.reason
    yield from _missed("the suspect was named", marks.suspect_s, bars.suspect_s)
    yield from _wrong_names(outcome, truth)
    if not marks.caught:
        yield _not_caught(outcome)
    yield from _missed("the attempt was acted upon and ended", marks.ended_s, bars.ended_s)
    if marks.resumed_step is None or marks.resumed_step != outcome.resume_step:
        yield f"resumed at step {marks.resumed_step}, not at {outcome.resume_step}"
    yield from _unfinished(outcome)
    yield from (f"attempt {event.attempt} was healthy, yet: {_say(event)}" for event in _harm(outcome) if event.attempt > 0)


def _ends_well(outcome: Outcome, _marks: Score, _bars: Bars) -> Iterator[str]:
    yield from (f"the training was healthy, yet: {_say(event)}" for event in _harm(outcome))
    yield from _open_alerts(outcome)
    yield from _unfinished(outcome)


def _fails(outcome: Outcome, _marks: Score, _bars: Bars) -> Iterator[str]:
    yield from (f"the script failed by itself, yet: {_say(event)}" for event in _harm(outcome) if event.kind == "verdict")
    if outcome.exit_code == 0:
        yield "the script failed, yet the exit code is 0"


def _stops(outcome: Outcome, _marks: Score, bars: Bars) -> Iterator[str]:
    yield from (f"the user stopped it, yet: {_say(event)}" for event in _harm(outcome))
    if isinstance(outcome.onset_unix_s, float):
        yield from _missed("all had ended", outcome.ended_unix_s - outcome.onset_unix_s, bars.ended_s)
    if outcome.exit_code == 0:
        yield "the user stopped it, yet the exit code is 0"
    if outcome.finished:
        yield "the training went on to its end after Ctrl-C"


def _missed(what: str, seconds: float | None, bar_s: float) -> Iterator[str]:
    if seconds is None:
        yield f"never: {what}"
    elif seconds > bar_s:
        yield f"{what} after {seconds:.1f} s, the bar is {bar_s:g} s"


def _wrong_names(outcome: Outcome, truth: Truth) -> Iterator[str]:
    """Naming another rank beside the right one is wrong too."""
    for event in outcome.events:
        if event.named is not None and event.named != (truth.rank,):
            yield f"{_say(event)}, but it is rank {truth.rank}"


def _not_caught(outcome: Outcome) -> str:
    verdicts = [f"{event.verdict} / {event.cause}" for event in outcome.events if event.kind == "verdict"]
    return f"no verdict {outcome.verdict} / {' or '.join(outcome.causes)}; verdicts: {', '.join(verdicts) or 'none'}"


def _unfinished(outcome: Outcome) -> Iterator[str]:
    if outcome.exit_code != 0 and not isinstance(outcome.exit_code, Missing):
        yield f"the exit code is {outcome.exit_code}"
    if not outcome.finished:
        yield "the training did not finish: its last checkpoint is not there"


def _harm(outcome: Outcome) -> Iterator[Event]:
    """What must not be said or done of a training that is well."""
    return (event for event in outcome.events if event.kind == "action" or (event.kind == "verdict" and event.verdict == "hang"))


def _open_alerts(outcome: Outcome) -> Iterator[str]:
    closed = {event.incident for event in outcome.events if event.kind == "incident_closed"}
    for event in outcome.events:
        if event.kind == "alert" and event.incident not in closed:
            yield f"an alert was never closed: {_say(event)}"


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


def _mentions(event: Event, pid: int | None) -> bool:
    return pid is not None and str(pid) in (event.sentence or "").replace(",", " ").split()


def _say(event: Event) -> str:
    what = event.what if event.kind == "action" else f"{event.verdict or 'suspected'} / {event.cause}"
    ranks = f" names rank {', '.join(map(str, event.named))}" if event.named else ""
    return f"{event.kind} {what}{ranks}"
