"""What logs tell: the registry of rules over a job's story.

The first that recognises its mechanism speaks; the others are named as doubts.
"""

import re
from collections.abc import Callable

import msgspec

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told import (
    collectives,
    degraded,
    devices,
    ends,
    exceptions,
    limits,
    loaders,
    meeting,
    mismatches,
    network,
    pace,
    scheduler,
    silence,
    teardown,
)
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.formats.log_ledger import Ledger

_QUOTED = re.compile(r".*?:\d+: ")
Rule = Callable[[Story], Diagnosis | None]

# In order: the scheduler goes before exit codes, what the kernel or a device states before what a rank concludes, a rank's own
# failure before what its peers suffer, and what ended before what only stands still.
RULES: tuple[Rule, ...] = (
    scheduler.ended_by_scheduler,
    devices.killed_for_memory,
    devices.device_fault,
    limits.limit_reached,
    loaders.loader_died,
    mismatches.disagreement,
    devices.gpu_memory,
    exceptions.lost_its_numbers,
    exceptions.repeated,
    exceptions.own_exception,
    ends.signalled,
    degraded.degraded_link,
    network.link,
    meeting.never_met,
    ends.peer_left,
    teardown.stuck_after_the_end,
    collectives.timed_out,
    degraded.contended,
    pace.slow,
    ends.watchdog_was_wrong,
    ends.left_over,
    silence.standing_still,
    silence.as_usual,
)

# For a job whose errors are all of the past, such as an earlier attempt's: its counters went on long after them.
RULES_OF_A_LIVE_JOB: tuple[Rule, ...] = (
    exceptions.lost_its_numbers,
    degraded.degraded_link,
    teardown.stuck_after_the_end,
    ends.watchdog_was_wrong,
    degraded.contended,
    pace.slow,
    silence.standing_still,
    silence.as_usual,
)


def diagnose_logs(ledger: Ledger) -> Diagnosis:
    """The answer that a job's logs allow. Never names a rank that no line of evidence names."""
    story = Story(ledger)
    found = [diagnosis for rule in (RULES_OF_A_LIVE_JOB if story.moves_on else RULES) if (diagnosis := rule(story)) is not None]
    if not found:
        return _nothing(story)
    first, *others = found
    doubts = tuple(f"also told: {other.sentence}" for other in others if _is_a_doubt(other, first))[:3]
    return msgspec.structs.replace(first, reasons_against=(*first.reasons_against, *doubts))


def _is_a_doubt(other: Diagnosis, first: Diagnosis) -> bool:
    """Whether a second answer speaks against the first: another fault of somebody else."""
    if other.cause in {first.cause, "unknown", "none"} or other.verdict in {"benign_wait", "healthy"}:
        return False
    if other.reasons_for and _line_of(other.reasons_for[0]) in map(_line_of, first.reasons_for):
        return False  # the same line, read a second way
    return other.culprit_ranks != first.culprit_ranks or other.culprit_ranks is None


def _line_of(reason: str) -> str:
    """Where a quoted line stands (told/words.py); another reason stands for itself."""
    found = _QUOTED.match(reason)
    return found[0] if found else reason


def _nothing(story: Story) -> Diagnosis:
    reasons: tuple[str, ...] = ("no line tells of a failure, a time-out, the scheduler, or of how long nothing came",)
    if story.pace is not None:
        reasons = (f"the last counter seen is step {story.pace.last.step}", *reasons)
    return Diagnosis(
        verdict="undetermined",
        cause="unknown",
        certainty=Certainty.SUSPECTED,
        sentence="what was read does not allow a conclusion",
        reasons_for=reasons,
        suggested=(
            "Add the logs of all ranks, the launcher's own output and the scheduler's",
            "For a job that still runs: `rankpatrol capture --pid PID` takes its stacks",
        ),
    )
