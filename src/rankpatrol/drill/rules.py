"""What each kind of drill demands: every complaint is a sentence. Pure."""

from collections.abc import Iterator

from rankpatrol.core.records import Missing
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.outcome import Bars, Outcome, Score


def complaints(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    """All that the patrol did wrong in this run; nothing where it passed."""
    rules = {
        Expectation.RECOVERS: _recovers,
        Expectation.NAMED: _named,
        Expectation.SUSPECTS: _suspects,
        Expectation.CRASHES: _crashes,
        Expectation.NOT_AGAIN: _not_again,
        Expectation.LOOPS: _loops,
        Expectation.TIMES_OUT: _times_out,
        Expectation.LAUNCHER_LOST: _launcher_lost,
        Expectation.SLOWED_BY_ONE: _slowed_by_one,
        Expectation.SLOWED: _slowed,
        Expectation.ALERTED: _alerted,
        Expectation.SILENT: _silent,
        Expectation.ENDS_WELL: _ends_well,
        Expectation.RELEASES: _releases,
        Expectation.STOPS: _stops,
        Expectation.WOULD_END: _would_end,
        Expectation.KEEPS: _keeps,
    }
    yield from _always(outcome)
    yield from rules[outcome.expects](outcome, marks, bars)


def wrong_names(outcome: Outcome) -> Iterator[str]:
    """Naming another rank beside the right one is wrong too."""
    told = outcome.told
    right = None if told.rank is None or outcome.names_nobody else tuple(sorted((told.rank, *told.others)))
    for event in outcome.events:
        if event.named is not None and event.named != right:
            yield f"{_say(event)}, but it is rank {', '.join(map(str, right or ())) or 'of nobody'}"


def _always(outcome: Outcome) -> Iterator[str]:
    if isinstance(outcome.truth, Missing):
        yield outcome.truth.reason
    if isinstance(outcome.exit_code, Missing):
        yield outcome.exit_code.reason
    for process in outcome.left:
        yield f"left behind: {process}"
    for at, event in enumerate(outcome.events):
        if event.kind == "action" and not outcome.virtual:
            yield from _acted_blindly(outcome, event, outcome.events[:at])


def _loops(outcome: Outcome, marks: Score, _bars: Bars) -> Iterator[str]:
    yield from wrong_names(outcome)
    yield from _not_caught(outcome, marks)
    attempts = {event.attempt for event in outcome.events if event.kind == "attempt_started"}
    if len(attempts) != _SAME_MOST:
        yield f"{len(attempts)} attempts were made, not {_SAME_MOST}"
    if not any(event.kind == "action" and event.what == "end_job" for event in outcome.events):
        yield "the job was not ended"
    if outcome.exit_code == 0:
        yield "the job failed, yet the exit code is 0"


_SAME_MOST = 3


def _acted_blindly(outcome: Outcome, action: Event, before: tuple[Event, ...]) -> Iterator[str]:
    """An action needs the sealed bundle of its own incident, and that bundle has to stand."""
    sealed = [event for event in before if event.kind == "bundle_sealed" and event.incident == action.incident and event.path]
    if not any(event.at_unix_s <= action.at_unix_s for event in sealed):
        yield f"acted ({action.what}) before the bundle of incident {action.incident} was sealed"
    for event in sealed:
        if not outcome.bundles.get(event.path or "", False):
            yield f"the bundle {event.path} does not verify"


def _recovers(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    held_until = outcome.told.until_unix_s
    if held_until is not None:
        yield from (
            f"nobody was to act yet: {_say(event)}" for event in outcome.events if _ends_something(event) and event.at_unix_s < held_until
        )
    yield from _culprit_named(outcome, marks, bars)
    yield from _strangers(outcome)
    yield from _missed("the attempt was acted upon and ended", marks.ended_s, bars.ended_s)
    yield from _next_attempt_finished(outcome, marks)


def _keeps(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    yield from (f"{_say(event)} is not proved" for event in outcome.events if _calls(event, "stop") and event.certainty != "proved")
    yield from _evidence_missed(outcome)
    yield from _ended_for_good(outcome)
    yield from (f"not kept, or not told as it is: {what}" for what in outcome.told.harmed)


def _ended_for_good(outcome: Outcome) -> Iterator[str]:
    if not any(event.kind == "action" and event.what == "end_job" for event in outcome.events):
        yield "the job was not ended"
    if len({event.attempt for event in outcome.events if event.kind == "attempt_started"}) != 1:
        yield "the training was started again"


def _strangers(outcome: Outcome) -> Iterator[str]:
    return (f"{stranger} was of nobody's concern, yet was touched" for stranger in outcome.told.harmed)


def _would_end(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    acted = next((event for event in outcome.events if event.kind == "action"), None)
    since_s = None if acted is None or isinstance(outcome.onset_unix_s, Missing) else acted.at_unix_s - outcome.onset_unix_s
    yield from _missed("the attempt would be ended", since_s, bars.ended_s)
    if since_s is not None and since_s < 0:
        yield "the attempt would be ended before anything was wrong"


def _ends_something(event: Event) -> bool:
    return event.kind == "action" and event.what != "resume_from"


def _named(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    yield from _strangers(outcome)
    yield from (f"a job that was only watched was acted upon: {_say(event)}" for event in outcome.events if event.kind == "action")
    if not any(outcome.bundles.values()):
        yield "no sealed bundle stands"


def _suspects(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _missed("the suspect was named", marks.suspect_s, bars.suspect_s)
    yield from wrong_names(outcome)
    if not any(event.kind == "alert" and event.cause in outcome.causes for event in outcome.events):
        yield f"no alert of {' or '.join(outcome.causes)}"
    for event in outcome.events:
        if event.kind == "alert" and event.certainty != "suspected":
            yield f"{_say(event)} is {event.certainty}, which cannot be known from outside"
        if event.kind == "action" or _calls(event, "hang"):
            yield f"no more than a suspicion can be had from outside, yet: {_say(event)}"


def _crashes(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    """The launcher may end and restart the ranks by itself: no action is demanded, but the proof and the evidence are."""
    yield from _culprit_named(outcome, marks, bars)
    for event in outcome.events:
        if _calls(event, "crash") and event.certainty != "proved":
            yield f"{_say(event)} is {event.certainty}, not proved"
        if _calls(event, "hang") and event.attempt == 0:
            yield f"the rank had ended, yet: {_say(event)}"
    yield from _evidence_missed(outcome)
    yield from _missed("the attempt ended", marks.ended_s, bars.ended_s)
    yield from _next_attempt_finished(outcome, marks)


def _times_out(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    yield from (f"the launcher restarts the job, yet: {_say(event)}" for event in outcome.events if event.kind == "action")
    yield from (f"the time-out came first, yet: {_say(event)}" for event in outcome.events if _calls(event, "hang"))
    sealed = next((event for event in outcome.events if event.kind == "bundle_sealed"), None)
    failed = next((event for event in outcome.events if _calls(event, "crash")), None)
    if sealed is None or (failed is not None and sealed.at_unix_s >= failed.at_unix_s):
        yield "no evidence was sealed before the time-out"
    yield from _next_attempt_finished(outcome, marks)


_GONE_S = 5.0


def _launcher_lost(outcome: Outcome, _marks: Score, _bars: Bars) -> Iterator[str]:
    told = outcome.told
    gone_s = None if told.until_unix_s is None or told.at_unix_s is None else told.until_unix_s - told.at_unix_s
    yield from _missed("all ranks were gone", gone_s, _GONE_S)
    yield from (f"{stranger} was of another job, and is gone" for stranger in told.harmed)
    yield from (f"nothing hung, yet: {_say(event)}" for event in outcome.events if _calls(event, "hang") or event.kind == "action")
    if outcome.exit_code == 0:
        yield "the launcher was killed, yet the exit code is 0"


def _not_again(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    yield from _ended_for_good(outcome)
    if not outcome.finished:
        yield "the last checkpoint is not there"


def _evidence_missed(outcome: Outcome) -> Iterator[str]:
    standing = [path for path, stands in outcome.bundles.items() if stands]
    if not standing:
        yield "no sealed bundle stands"
    elif not any(outcome.in_log_tail in outcome.log_tails.get(path, "") for path in standing):
        yield f"no bundle holds {outcome.in_log_tail!r} in the log of rank {outcome.told.rank}"


def _culprit_named(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    if isinstance(outcome.onset_unix_s, Missing):
        yield outcome.onset_unix_s.reason
    if outcome.names_nobody:
        yield from _missed("the verdict came", marks.verdict_s, bars.suspect_s)
    else:
        yield from _missed("the suspect was named", marks.suspect_s, bars.suspect_s)
    yield from wrong_names(outcome)
    yield from _not_caught(outcome, marks)


def _not_caught(outcome: Outcome, marks: Score) -> Iterator[str]:
    if not marks.caught:
        verdicts = [f"{event.verdict} / {event.cause}" for event in outcome.events if event.kind == "verdict"]
        yield f"no verdict {outcome.verdict} / {' or '.join(outcome.causes)}; verdicts: {', '.join(verdicts) or 'none'}"


def _next_attempt_finished(outcome: Outcome, marks: Score) -> Iterator[str]:
    from_scratch = marks.resumed_step is None and outcome.resume_step == 0  # no checkpoint was there yet
    if not from_scratch and (marks.resumed_step is None or marks.resumed_step != outcome.resume_step):
        yield f"resumed at step {marks.resumed_step}, not at {outcome.resume_step}"
    yield from _unfinished(outcome)
    yield from (f"attempt {event.attempt} was healthy, yet: {_say(event)}" for event in _harm(outcome) if event.attempt > 0)


def _silent(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    if marks.silent_s is None:
        yield "the silence was never over"
    elif marks.silent_s <= bars.silence_s:
        yield f"the silence lasted {marks.silent_s:.1f} s only: no longer than {bars.silence_s:g} s, it proves nothing"
    yield from _ends_well(outcome, marks, bars)


def _slowed_by_one(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _culprit_named(outcome, marks, bars)
    yield from _evidence_missed(outcome)
    yield from _ends_well(outcome, marks, bars)


def _slowed(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    yield from _missed("the job was called slow", marks.verdict_s, bars.suspect_s)
    yield from _not_caught(outcome, marks)
    yield from (f"nobody was to be named, yet: {_say(event)}" for event in outcome.events if event.named)
    yield from _evidence_missed(outcome)
    yield from _ends_well(outcome, marks, bars)


def _alerted(outcome: Outcome, marks: Score, bars: Bars) -> Iterator[str]:
    alert = next((event for event in outcome.events if event.kind == "alert" and event.cause in outcome.causes), None)
    since_s = None if alert is None or isinstance(outcome.onset_unix_s, Missing) else alert.at_unix_s - outcome.onset_unix_s
    yield from _missed(f"an alert of {' or '.join(outcome.causes)}", since_s, bars.suspect_s)
    yield from (f"nobody was to be named, yet: {_say(event)}" for event in outcome.events if event.named)
    yield from _evidence_missed(outcome)
    yield from _ends_well(outcome, marks, bars)


def _ends_well(outcome: Outcome, _marks: Score, _bars: Bars) -> Iterator[str]:
    yield from (f"the training was healthy, yet: {_say(event)}" for event in _harm(outcome))
    yield from _open_alerts(outcome)
    yield from _unfinished(outcome)


_RELEASED_S = 20.0


def _releases(outcome: Outcome, _marks: Score, _bars: Bars) -> Iterator[str]:
    """By the injector's own eyes, and by what the patrol tells: the orphans are gone, and nobody else was named, let alone signalled."""
    told = outcome.told
    gone_s = None if told.until_unix_s is None or told.at_unix_s is None else told.until_unix_s - told.at_unix_s
    yield from _missed("the orphans were gone", gone_s, _RELEASED_S)
    yield from _strangers(outcome)
    named = {event.pid for event in outcome.events if event.kind == "orphan"}
    released = {event.pid for event in outcome.events if event.kind == "orphan_released" and event.done}
    # The first is the stuck one. The rank's other loader processes are orphans too, but may notice it and go by themselves.
    yield from (f"process {pid} was orphaned, but not told as released" for pid in told.pids[:1] if pid not in named & released)
    yield from (f"process {pid} is called an orphan, and is none" for pid in sorted(filter(None, named - set(told.pids))))
    yield from (f"nothing hung, yet: {_say(event)}" for event in outcome.events if _calls(event, "hang"))
    yield from _unfinished(outcome)


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


def _unfinished(outcome: Outcome) -> Iterator[str]:
    if outcome.exit_code != 0 and not isinstance(outcome.exit_code, Missing):
        yield f"the exit code is {outcome.exit_code}"
    if not outcome.finished:
        yield "the training did not finish: its last checkpoint is not there"


def _harm(outcome: Outcome) -> Iterator[Event]:
    """What must not be said or done of a training that is well."""
    return (event for event in outcome.events if event.kind == "action" or _calls(event, "hang") or _calls(event, "crash"))


def _calls(event: Event, verdict: str) -> bool:
    return event.kind == "verdict" and event.verdict == verdict


def _open_alerts(outcome: Outcome) -> Iterator[str]:
    closed = {event.incident for event in outcome.events if event.kind == "incident_closed"}
    for event in outcome.events:
        if (event.kind == "alert" or _calls(event, "slow")) and event.incident not in closed:
            yield f"{'an alert' if event.kind == 'alert' else 'a verdict'} was never closed: {_say(event)}"


def _say(event: Event) -> str:
    what = event.what if event.kind == "action" else f"{event.verdict or 'suspected'} / {event.cause}"
    ranks = f" names rank {', '.join(map(str, event.named))}" if event.named else ""
    return f"{event.kind} {what}{ranks}"
