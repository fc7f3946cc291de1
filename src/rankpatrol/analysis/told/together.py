"""One answer from the logs, the stacks and the recordings of one job: a first cause that a log proves, and who is missing by the rest."""

import msgspec

from rankpatrol.analysis.told.words import ranks_words
from rankpatrol.core.diagnosis import Certainty, Diagnosis

_SURENESS = {Certainty.SUSPECTED: 0, Certainty.SUPPORTED: 1, Certainty.PROVED: 2}
# What ends or breaks one rank's process: the first cause where a log tells it, and the reason why that rank is missing elsewhere.
_OF_ONE_RANK = frozenset({
    "user_exception", "rank_exception_peers_wait", "repeated_failure", "gpu_oom", "host_oom_kill", "sigkill", "sigsegv", "sigabrt",
    "gpu_lost", "gpu_ecc", "cuda_illegal_access", "fd_exhaustion", "data_worker_killed_oom", "data_worker_killed_shm", "left_early",
})  # fmt: skip
# What befalls the job as a whole: nobody is missing because of it alone.
_OF_THE_JOB = frozenset({
    "preempted_or_cancelled", "node_missing", "disk_full", "shm_too_small", "port_in_use", "network_unreachable", "rendezvous_failed",
    "link_down", "ib_link_flap", "loss_nan",
})  # fmt: skip
# Who is missing, without a word about why.
_GENERAL = frozenset({"unknown", "none", "rank_missing_collective", "timeout_too_short", "collective_started_everywhere"})


def weigh(answers: list[Diagnosis]) -> Diagnosis | None:
    """The answer that stands of several: what decides goes before what does not, then what names a cause, then the surer one."""
    return max(answers, key=_weight, default=None)


def _weight(answer: Diagnosis) -> tuple[bool, bool, int]:
    return answer.verdict != "undetermined", answer.cause not in {"unknown", "none"}, _SURENESS[answer.certainty]


def together(logs: Diagnosis | None, stacks: Diagnosis | None, recordings: Diagnosis | None) -> Diagnosis | None:
    """The answer of all three, where given. Where two disagree, the other's word is told as a doubt."""
    seen = _of_one_moment(stacks, recordings)
    if logs is None or seen is None:
        return logs or seen
    if logs.cause in _OF_ONE_RANK:
        return _first_cause(logs, seen)
    if logs.cause in _OF_THE_JOB:
        return logs
    if logs.verdict == "healthy" and logs.certainty is not Certainty.SUSPECTED and seen.certainty is Certainty.SUSPECTED:
        return logs if seen.verdict in {"healthy", "undetermined"} else _doubted(logs, seen)
    if seen.verdict == "hang" and seen.culprit_ranks:
        return _who_is_awaited(logs, seen)
    if seen.verdict == "benign_wait" and seen.awaited_ranks and logs.verdict in {"hang", "crash"} and logs.cause in _GENERAL:
        # The others gave up before it was ready.
        return msgspec.structs.replace(
            _with_reasons(seen, logs), verdict=logs.verdict, culprit_ranks=seen.awaited_ranks, awaited_ranks=None
        )
    return weigh([seen, logs])


def _of_one_moment(stacks: Diagnosis | None, recordings: Diagnosis | None) -> Diagnosis | None:
    """Stacks show where a rank is, recordings count what it has entered."""
    if stacks is None or recordings is None:
        return stacks or recordings
    mine, theirs = set(stacks.culprit_ranks or ()), set(recordings.culprit_ranks or ())
    if mine and mine == theirs:
        special, other = (recordings, stacks) if stacks.cause in _GENERAL else (stacks, recordings)
        surer = max(special, other, key=lambda each: _SURENESS[each.certainty])
        return msgspec.structs.replace(_with_reasons(special, other), certainty=surer.certainty)
    if mine and theirs:
        first, second = (stacks, recordings) if _weight(stacks) > _weight(recordings) else (recordings, stacks)
        return _doubted(first, second)
    if mine or theirs:
        return stacks if mine else recordings
    return weigh([stacks, recordings])


def _first_cause(logs: Diagnosis, seen: Diagnosis) -> Diagnosis:
    """What the log tells is why; the rank that is missing is its own, or at least is suspected to be where the log names none."""
    missing = seen.culprit_ranks if seen.verdict == "hang" else None
    if not missing:
        return logs
    if logs.culprit_ranks is None:
        if len(missing) != 1:
            return logs
        told = _with_reasons(logs, seen)
        return msgspec.structs.replace(
            told,
            culprit_ranks=missing,
            victim_ranks=seen.victim_ranks,
            certainty=Certainty.SUSPECTED,
            sentence=f"{logs.sentence}; most likely {ranks_words(missing)}, which the others miss",
        )
    if set(missing) != set(logs.culprit_ranks):
        return _doubted(logs, seen)
    cause = "rank_exception_peers_wait" if logs.cause == "user_exception" else logs.cause
    return msgspec.structs.replace(_with_reasons(logs, seen), cause=cause, victim_ranks=seen.victim_ranks or logs.victim_ranks)


def _who_is_awaited(logs: Diagnosis, seen: Diagnosis) -> Diagnosis:
    """The log tells that ranks waited in vain; who did not come is seen elsewhere."""
    named = set(logs.culprit_ranks or ())
    if named and named == set(seen.culprit_ranks or ()):
        if seen.cause in _GENERAL and logs.cause not in _GENERAL:
            return msgspec.structs.replace(_with_reasons(logs, seen), victim_ranks=seen.victim_ranks or logs.victim_ranks)
        return _with_reasons(seen, logs)
    if not named:
        return _with_reasons(seen, logs) if logs.verdict in {"hang", "crash"} else seen
    return _doubted(logs, seen) if _SURENESS[logs.certainty] > _SURENESS[seen.certainty] else _doubted(seen, logs)


def _with_reasons(answer: Diagnosis, other: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(answer, reasons_for=(*answer.reasons_for, other.sentence))


def _doubted(answer: Diagnosis, other: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(answer, reasons_against=(*answer.reasons_against, f"also told: {other.sentence}"))
