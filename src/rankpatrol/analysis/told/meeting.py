"""Jobs whose ranks never met: the rendezvous, the store, or the first communicator was not reached."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Kind


def never_met(story: Story) -> Diagnosis | None:
    """The rendezvous failed: a matter of addresses and agents; no rank exists yet that could be blamed."""
    told = story.told(Kind.SYMPTOM, "rendezvous_failed")
    if not told and not story.waits and story.pace is None:
        told = story.told(Kind.SYMPTOM, "unique_id", "key_wait")
    if not told or story.waits or story.pace is not None:
        return None
    joined = next((each.first for each in told if "joined" in each.first.values), None)
    share = f" ({joined.values['joined']} of {joined.values['wanted']} came)" if joined is not None else ""
    return Diagnosis(
        verdict="hang" if story.goes_on and not story.exceptions else "crash",
        cause="rendezvous_failed",
        certainty=Certainty.SUPPORTED if len({each.first.word for each in told}) > 1 or len(told) > 1 else Certainty.SUSPECTED,
        sentence=f"the ranks never met{share}: the rendezvous or its store was not reached in time",
        reasons_for=tuple(quote(each.first) for each in told[:3]),
        reasons_against=("no rank exists at that stage: nobody can be named",),
        suggested=(
            "Check which node owns the endpoint's address, that its agent runs, and that the port is open from the other nodes",
            "Check that all nodes were started with the same --nnodes, --rdzv-id and endpoint",
        ),
    )
