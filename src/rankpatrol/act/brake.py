"""The brake: what failed three times in a row in the same way is deterministic, and another attempt would only fail again. Pure."""

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record

# Twice may be chance (the same bad block met again before it was mended); the third time is a loop.
SAME_MOST = 3


class Signature(Record, frozen=True, kw_only=True):
    """How an attempt failed: of what, where, at which step; whichever rank it was."""

    cause: str
    place: str | None
    step: int | None

    def tells_something(self) -> bool:
        """False where neither step nor place is known: failures of which nothing is known are not known to be the same."""
        return self.step is not None or self.place is not None


def signature(diagnosis: Diagnosis, step: int | None) -> Signature:
    """The signature of a judged attempt that had come to `step`."""
    return Signature(cause=diagnosis.cause, place=diagnosis.file or diagnosis.place, step=step)


def braked(diagnosis: Diagnosis, history: tuple[Signature, ...], now: Signature) -> Diagnosis | None:
    """The verdict `stop` where this failure is the third of its kind in a row, else None. `history`: the earlier ones, oldest first."""
    before = history[-(SAME_MOST - 1) :]
    if len(before) < SAME_MOST - 1 or not now.tells_something() or any(earlier != now for earlier in before):
        return None
    where = f" in {now.place}" if now.place else ""
    when = f" at step {now.step}" if now.step is not None else ""
    return Diagnosis(
        verdict="stop",
        cause="repeated_failure",
        culprit_ranks=diagnosis.culprit_ranks,
        victim_ranks=diagnosis.victim_ranks,
        certainty=Certainty.PROVED,
        sentence=f"the same failure {SAME_MOST} times in a row ({now.cause}{where}{when}): no further attempt. Last: {diagnosis.sentence}",
        reasons_for=(f"{SAME_MOST} attempts ended of {now.cause}{where}{when}", *diagnosis.reasons_for),
        reasons_against=diagnosis.reasons_against,
        suggested=("Mend the cause before you start the job again; the bundles of all three are kept", *diagnosis.suggested),
        place=diagnosis.place,
        process=diagnosis.process,
        file=diagnosis.file,
        file_offset_bytes=diagnosis.file_offset_bytes,
    )
