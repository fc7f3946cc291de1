"""One close look at the ranks, and what it says."""

from rankpatrol.agent.eyes import Eyes
from rankpatrol.analysis.desync import ranks_to_ask_for_lines, wants_recordings
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.collect.stacks import FORBIDDEN
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Snapshot
from rankpatrol.evidence.findings import speakable


def look_closely(eyes: Eyes) -> Diagnosis:
    """What the ranks show now, without secrets: what is said of them goes into journals, recordings and onto terminals."""
    return speakable(_look(eyes))


def _look(eyes: Eyes) -> Diagnosis:
    """Stacks first; where they leave it open because all ranks wait in collectives, or one has left, flight recordings too.

    A rank that spins is asked once whether its Python answers.
    """
    eyes.look()
    if wants_recordings(tuple(eyes.looks)):
        eyes.add_recordings_at_work()
    found = diagnose(tuple(eyes.looks))
    if found.verdict == "undetermined" and len(found.victim_ranks) < eyes.looks[-1].world_size:
        return found
    if found.cause == "spin" and eyes.ask_for_locks(found.culprit_ranks or ()):
        return diagnose(tuple(eyes.looks))
    if found.verdict in {"undetermined", "crash"} or _only_by_stacks(found):
        eyes.add_recordings()
        found = diagnose(tuple(eyes.looks))
        open_question = found.verdict == "hang" and found.certainty is not Certainty.PROVED
        if open_question and eyes.add_lines(ranks_to_ask_for_lines(tuple(eyes.looks))):
            found = diagnose(tuple(eyes.looks))
    return found


def _only_by_stacks(found: Diagnosis) -> bool:
    """What recordings tell better, where there are some."""
    return found.cause == "rank_missing_collective" and found.certainty is Certainty.SUSPECTED


def forbidden(look: Snapshot) -> str | None:
    """Why stacks may not be taken here, where that is so of any rank."""
    reasons = (sample.stack.reason for sample in look.ranks if isinstance(sample.stack, Missing))
    return next((reason for reason in reasons if reason.startswith(FORBIDDEN)), None)
