"""An answer from our own events: the last incident that was told of a job, and what followed it. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record

_FOUND = frozenset({"verdict", "alert"})
# Alerts of a job that goes on well are told with this cause alone.
_HEALTHY_ALERTS = frozenset({"loss_nan"})


class Line(Record, frozen=True, kw_only=True):
    """One event, as far as it is told of here; which fields it has goes by its kind."""

    at_unix_s: float
    kind: str
    attempt: int = 0
    incident: int | str | None = None
    verdict: str = "undetermined"
    cause: str = "unknown"
    certainty: Certainty = Certainty.SUSPECTED
    sentence: str = ""
    culprit_ranks: tuple[int, ...] | None = None
    awaited_ranks: tuple[int, ...] | None = None
    suspect_ranks: tuple[int, ...] | None = None
    what: str = "?"
    done: bool | None = None
    why: str = ""
    by: str = "?"
    how: str = "?"
    path: str | None = None
    checkpoint: str = "?"
    exit_code: int | None = None
    reason: str = "?"
    step: int | None = None


class EventAnswer(NamedTuple):
    """What the events say, what followed in a sentence, and the bundle of the incident where one was sealed. `judged`: by a verdict."""

    diagnosis: Diagnosis
    followed: str
    bundle: str | None
    judged: bool


def diagnose_events(events: Iterable[Mapping[str, Any]]) -> EventAnswer | None:
    """None where there is no event."""
    # Progress is told each second: of it only the last counts.
    lines, step = [], None
    for event in events:
        try:
            line = msgspec.convert(event, Line)
        except msgspec.ValidationError:
            continue
        if line.kind == "progress":
            step = line.step if step is None or line.step is None else max(step, line.step)
        else:
            lines.append(line)
    if not lines and step is None:
        return None
    at = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].kind in _FOUND), None)
    return _without_incident(lines, step) if at is None else _of_incident(lines, at, step)


def _of_incident(lines: list[Line], at: int, step: int | None) -> EventAnswer:
    last = lines[at]
    bundle = next((line.path for line in reversed(lines) if line.kind == "bundle_sealed" and line.incident == last.incident), None)
    followed = _followed([line for line in lines[at + 1 :] if line.incident in {None, last.incident}], step)
    judged = last.kind == "verdict"
    found = Diagnosis(
        verdict=last.verdict if judged else "healthy" if last.cause in _HEALTHY_ALERTS else "undetermined",
        cause=last.cause,
        culprit_ranks=last.culprit_ranks if judged else last.suspect_ranks,
        awaited_ranks=last.awaited_ranks,
        certainty=last.certainty if judged else Certainty.SUSPECTED,
        sentence=last.sentence if judged else f"suspected, and never judged: {last.sentence}",
        reasons_for=(followed,),
        suggested=(f"Look at its evidence: rankpatrol bundle show {bundle}",) if bundle else (),
    )
    return EventAnswer(found, followed, bundle, judged)


def _without_incident(lines: list[Line], step: int | None) -> EventAnswer:
    """A job of which nothing was suspected: healthy only where it has finished well, for its events say no more."""
    ended = next((line for line in lines if line.kind == "job_ended"), None)
    well = ended is not None and ended.reason == "finished"
    followed = _followed(lines, step)
    found = Diagnosis(
        verdict="healthy" if well else "undetermined",
        cause="none" if well else "unknown",
        certainty=Certainty.SUPPORTED if well else Certainty.SUSPECTED,
        sentence=f"no incident was told of this job; {followed.removeprefix('what followed: ')}",
        suggested=() if well else ("Give the whole job directory, or the logs of its ranks: attempts/*/rank*.log",),
    )
    return EventAnswer(found, followed, None, judged=False)


def _followed(lines: list[Line], step: int | None) -> str:
    said = [words for line in lines if (words := _say(line))]
    if step is not None:
        said.append(f"the last step told was {step}")
    if not any(line.kind == "job_ended" for line in lines):
        said.append("the job had not ended when the last event was written")
    return f"what followed: {'; '.join(dict.fromkeys(said))}"


def _say(line: Line) -> str:
    """One event in some words; nothing where it does not matter to what came of an incident."""
    match line.kind:
        case "bundle_sealed":
            return f"evidence sealed ({line.path})"
        case "action" | "action_held" | "action_refused" | "answer_refused":
            return _say_action(line)
        case "question":
            return f"a person was asked: {line.what}?"
        case "incident_closed":
            return f"closed: {line.how}"
        case "attempt_started" if line.attempt > 0:
            return f"attempt {line.attempt} started"
        case "resumed":
            return f"from {line.checkpoint.rpartition('/')[2]}" + ("" if line.step is None else f", step {line.step}")
        case "job_ended":
            return f"the job ended: {line.reason}, exit code {line.exit_code}"
    return ""


def _say_action(line: Line) -> str:
    """Nothing of one that has only begun: its end is an event of its own."""
    what = line.what.replace("_", " ")
    match line.kind, line.done:
        case "action", None:
            return ""
        case "action", done:
            return f"{what} done" if done else f"{what} not done: {line.why}"
        case "action_held", _:
            return f"not acted upon, paused by {line.by}"
    return f"nothing was done: {line.why}"
