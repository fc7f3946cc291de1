"""The brake: when a job is not started again, and how long it pauses before it is. Pure; one rule a row of `RULES`."""

from collections.abc import Callable
from itertools import combinations

from msgspec.structs import replace

from rankpatrol.act.suspects import suspect_file
from rankpatrol.core.budget import Budget
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record

# Twice may be chance (the same bad block met again before it was mended); the third time is a loop.
SAME_MOST = 3
_HOUR_S, _DAY_S = 3600.0, 86400.0
_ORDINALS = {2: "second", 3: "third"}


class Signature(Record, frozen=True, kw_only=True):
    """How an attempt failed: of what, where, at which step; whichever rank it was."""

    cause: str
    place: str | None
    step: int | None

    def agrees_with(self, other: "Signature") -> bool:
        """True where both are one failure, for all that is known; what nothing is known of agrees with nothing.

        An attempt that goes on from a checkpoint and fails at once has named no step yet: the same line of code stands for the step then.
        """
        if (self.cause, self.place) != (other.cause, other.place):
            return False
        if self.place is None:
            return self.step is not None and self.step == other.step
        return self.step == other.step or None in {self.step, other.step}


class Failure(Record, frozen=True, kw_only=True):
    """One judged attempt: its verdict, how far it had come, and when it began to fail."""

    attempt: int
    incident: int
    at_unix_s: float
    diagnosis: Diagnosis
    step: int | None = None
    phase: str | None = None


Rule = Callable[[Failure, tuple[Failure, ...], Budget], Diagnosis | None]


def signature(diagnosis: Diagnosis, step: int | None) -> Signature:
    """The signature of a judged attempt that had come to `step`.

    A loader process stuck at a file is stuck there at whatever step the shuffled order brings it.
    """
    data = suspect_file(diagnosis)
    place = diagnosis.file or diagnosis.place
    if place is None and step is None and diagnosis.cause == "unknown":
        place = diagnosis.failure  # a script that does not start: its exit code and its last words
    return Signature(cause=diagnosis.cause, place=place, step=None if data else step)


def braked(now: Failure, history: tuple[Failure, ...], budget: Budget) -> Diagnosis | None:
    """The verdict that ends the job for good, by the first rule that speaks, or None where it may start again.

    `history`: the earlier failures of the job, oldest first.
    """
    return next((stop for rule in RULES if (stop := rule(now, history, budget)) is not None), None)


def recalled(now: Failure, history: tuple[Failure, ...]) -> Diagnosis:
    """The diagnosis, which says so where a file has held the job up before."""
    data = suspect_file(now.diagnosis)
    times = 1 + sum(1 for failure in history if data is not None and failure.diagnosis.file == data.file)
    if data is None or times < 2:
        return now.diagnosis
    sentence = f"{now.diagnosis.sentence}; the {_ordinal(times)} time at {data.file}"
    suggested = (f"Look at {data.file}, or have the training skip it: RANKPATROL_SUSPECT_FILES names it", *now.diagnosis.suggested)
    return replace(now.diagnosis, sentence=sentence, suggested=tuple(dict.fromkeys(suggested)))


def pause_s(now_unix_s: float, history: tuple[Failure, ...], budget: Budget) -> float:
    """How long the next attempt waits, by the failures of the last hour (the latest among `history`)."""
    beyond = _since(history, now_unix_s, _HOUR_S) - budget.at_once
    # The exponent is bounded so that no float overflows.
    return min(budget.longest_pause_s, budget.first_pause_s * 2 ** min(beyond - 1, 30)) if beyond > 0 else 0.0


def _ordinal(number: int) -> str:
    return _ORDINALS.get(number, f"{number}th")


def _since(history: tuple[Failure, ...], now_unix_s: float, window_s: float) -> int:
    """How many attempts failed within the window."""
    return len({failure.attempt for failure in history if now_unix_s - failure.at_unix_s <= window_s})


def _after_the_last_step(now: Failure, _history: tuple[Failure, ...], _budget: Budget) -> Diagnosis | None:
    """What hangs while its groups are taken down has done its work: another attempt would do it again, and hang again."""
    found = now.diagnosis
    taken_down = now.phase == "teardown"
    if found.verdict != "hang" or not (taken_down or found.cause == "teardown_deadlock"):
        return None
    return replace(
        found,
        verdict="zombie_job",
        cause="teardown_deadlock",
        sentence=f"the training is over but does not end: {found.sentence}; it is not started again",
        reasons_for=(
            *(("every rank's probe says that the process groups are being taken down",) if taken_down else ()),
            *found.reasons_for,
        ),
        suggested=("Check that the last checkpoint is whole before you start anything again", *found.suggested),
    )


def _on_a_full_disk(now: Failure, _history: tuple[Failure, ...], _budget: Budget) -> Diagnosis | None:
    if now.diagnosis.cause != "disk_full":
        return None
    return _stop(now, "the disk is full, and another attempt would not find more room", "Make room, then start the job again")


def _no_memory_at_loading(now: Failure, _history: tuple[Failure, ...], _budget: Budget) -> Diagnosis | None:
    """Before the first step nothing but loading has taken memory, and the next attempt loads the same."""
    loading = now.phase in {"initialisation", "first_step"} or (now.phase in {None, "starting"} and now.step is None)
    if now.diagnosis.cause not in {"host_oom_kill", "data_worker_killed_oom"} or not loading:
        return None
    advice = "Give the job more host memory, or fewer ranks or loader processes a node"
    return _stop(now, "the host's memory did not suffice for loading, and the next attempt would load the same", advice)


def _again_the_same(now: Failure, history: tuple[Failure, ...], _budget: Budget) -> Diagnosis | None:
    # A silence that was judged and ended by itself is no failed attempt; of each attempt the last word counts.
    before = {failure.attempt: failure for failure in history if failure.attempt != now.attempt}
    alike = tuple(before.values())[-(SAME_MOST - 1) :]
    signatures = [signature(failure.diagnosis, failure.step) for failure in (*alike, now)]
    if len(alike) < SAME_MOST - 1 or not all(one.agrees_with(other) for one, other in combinations(signatures, 2)):
        return None
    mine, steps = signatures[-1], {each.step for each in signatures} - {None}
    where = f" in {mine.place}" if now.diagnosis.file or now.diagnosis.place else ""
    when = f" at step {steps.pop()}" if steps else ""
    data = suspect_file(now.diagnosis)
    what = (
        f"the third time at {data.file} ({mine.cause}): no further attempt"
        if data
        else f"the same failure {SAME_MOST} times in a row ({mine.cause}{where}{when}): no further attempt"
    )
    return replace(
        now.diagnosis,
        verdict="stop",
        cause="repeated_failure",
        certainty=Certainty.PROVED,
        sentence=f"{what}. Last: {now.diagnosis.sentence}",
        reasons_for=(*(_shown(failure) for failure in (*alike, now)), *now.diagnosis.reasons_for),
        suggested=("Mend the cause before you start the job again; the bundles of all three are kept", *now.diagnosis.suggested),
        not_to_be_ended=None,
    )


def _over_the_budget(now: Failure, history: tuple[Failure, ...], budget: Budget) -> Diagnosis | None:
    for most, window_s, name in ((budget.per_hour, _HOUR_S, "an hour"), (budget.per_day, _DAY_S, "a day")):
        failed = _since((*history, now), now.at_unix_s, window_s)
        if failed > most:
            found = _stop(now, f"{failed} failures within {name}, more than the {most} it may have", "Look at what they have in common")
            return replace(found, cause="repeated_failure", certainty=Certainty.PROVED)
    return None


def _stop(now: Failure, why: str, advice: str) -> Diagnosis:
    return replace(
        now.diagnosis,
        verdict="stop",
        sentence=f"{now.diagnosis.sentence}. No further attempt: {why}",
        reasons_for=(*now.diagnosis.reasons_for, why),
        suggested=(advice, *now.diagnosis.suggested),
        not_to_be_ended=None,
    )


def _shown(failure: Failure) -> str:
    step = f", step {failure.step}" if failure.step is not None else ""
    return f"attempt {failure.attempt} (incident {failure.incident}{step}): {failure.diagnosis.sentence}"


# In this order: the first that speaks is the reason that people are told. An end that was ordered (a user's cancel, a time limit) never
# comes here: what stands still then is not judged.
RULES: tuple[Rule, ...] = (_after_the_last_step, _on_a_full_disk, _no_memory_at_loading, _again_the_same, _over_the_budget)
