"""One close look at the ranks, and what it says."""

from rankpatrol.agent.eyes import Eyes
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Diagnosis


def look_closely(eyes: Eyes) -> Diagnosis:
    """Stacks first; where they leave it open because all ranks wait in collectives, or one has left, flight recordings too."""
    eyes.look()
    found = diagnose(tuple(eyes.looks))
    if found.verdict == "undetermined" and len(found.victim_ranks) < eyes.looks[-1].world_size:
        return found
    if found.verdict in {"undetermined", "crash"}:
        eyes.add_recordings()
        found = diagnose(tuple(eyes.looks))
    return found
