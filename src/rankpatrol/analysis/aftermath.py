"""A crash after an alert: the fault was named while all were alive, and what failed later may only be its outcome."""

from msgspec.structs import replace

from rankpatrol.analysis.ends import ENDS_BY_ITSELF
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis


def still_there(alerted: Diagnosis, hang: Diagnosis) -> Diagnosis:
    """A hang of ranks that had raised before: their interpreters do not go down, and the exception stays the first thing to tell.

    Of a rank that is gone (left early) nothing more is told than before.
    """
    if (alerted.verdict, hang.verdict) != ("crash", "hang") or alerted.culprit_ranks != hang.culprit_ranks:
        return hang
    return replace(hang, sentence=f"{alerted.sentence}, and has not gone down since: {hang.sentence}")


def aftermath(alerted: Diagnosis, crash: Diagnosis) -> Diagnosis:
    """The verdict on a crash whose attempt had a suspect already.

    A rank that failed of its own is the culprit, whoever was suspected before. Where the others only echo each other or their group's
    time-out, the suspect of the alert stays named; one that still worked then is not to blame, the time-out was too short for it. So it
    does where several raised the same while they waited for it: a time-out of the training's own.
    """
    if alerted.verdict == "crash":  # told while its interpreter went down
        return alerted if crash.failure is None and crash.culprit_ranks is None else crash
    waited = (
        alerted.verdict == "hang" and len(crash.culprit_ranks or ()) > 1 and set(crash.culprit_ranks or ()) <= set(alerted.victim_ranks)
    )
    known = (crash.culprit_ranks is not None or crash.failure is not None) and crash.certainty is not Certainty.SUSPECTED
    if known and not waited:
        return replace(crash, reasons_for=(*crash.reasons_for, f"before it ended: {alerted.sentence}"))
    if alerted.verdict not in {"hang", "benign_wait"}:
        return crash
    ended_of_it = tuple(sorted({*crash.victim_ranks, *(crash.culprit_ranks or ())} - set(alerted.culprit_ranks or ())))
    outcome = f"{say_ranks(ended_of_it)} ended of it" if ended_of_it else "the others ended of it"
    ended = replace(
        alerted,
        verdict="crash",
        victim_ranks=ended_of_it or alerted.victim_ranks,
        sentence=f"{alerted.sentence}; then {outcome}",
        reasons_for=(*alerted.reasons_for, *crash.reasons_for),
        not_to_be_ended=ENDS_BY_ITSELF,
    )
    if alerted.verdict == "hang":
        return ended
    longer = f"Give the process group a longer timeout=, or let {say_ranks(alerted.awaited_ranks or ())} do this before the others wait"
    return replace(ended, cause="timeout_too_short", suggested=(*alerted.suggested, longer))
