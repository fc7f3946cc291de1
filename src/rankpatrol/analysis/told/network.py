"""Links and networks: one that flaps after the job had worked, and one that never worked."""

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Kind

_NEVER = ("connect_failed", "no_interface")
_P2P = ("p2p_bad", "p2p_switch", "iommu", "acs")


def link(story: Story) -> Diagnosis | None:
    """Port events name the node. A transport error alone is a link after hours of steps, a configuration before the first one."""
    downs = story.told(Kind.SYMPTOM, "link_down", "nic")
    errors = story.told(Kind.SYMPTOM, "transport_error", "link_errors")
    if story.says(Kind.SYMPTOM, *_P2P) and not _worked(story):
        return _peer_to_peer(story)
    if downs:
        return _flap(story)
    if ((errors and _at_the_start(story)) or story.says(Kind.SYMPTOM, *_NEVER)) and not _worked(story):
        return _unreachable(story)
    if errors:
        return _transport(story)
    return None


def _worked(story: Story) -> bool:
    """Whether a step was ever done; the observer may say that none was."""
    done = [told.last.number("steps") for told in story.told(Kind.OBSERVED, "steps_done")]
    if any(steps is not None for steps in done):
        return any(steps for steps in done)
    if story.pace is not None and story.pace.last.step > 0:
        return True
    sequences = [wait.sequence for wait in story.waits if wait.sequence is not None]
    return bool(sequences) and max(sequences) > 100


def _at_the_start(story: Story) -> bool:
    """Whether the lines are of a start: the observer says so, or ranks are seen setting up and nothing else."""
    return story.says(Kind.OBSERVED, "steps_done") or story.says(Kind.PHASE, "starting")


def _hosts(story: Story) -> list[str]:
    return sorted({told.first.teller.host for told in story.told(Kind.SYMPTOM, "link_down", "nic") if told.first.teller.host})


def _flap(story: Story) -> Diagnosis:
    downs = story.told(Kind.SYMPTOM, "link_down", "nic")
    hosts = _hosts(story)
    back = story.says(Kind.SYMPTOM, "link_up") or sum(told.count for told in downs) > 1
    effects = story.told(Kind.SYMPTOM, "transport_error")
    at = f"of {', '.join(hosts)} " if hosts else ""
    again = " and got it back" if story.says(Kind.SYMPTOM, "link_up") else ""
    return Diagnosis(
        verdict=story.verdict(),
        cause="ib_link_flap" if back or effects or not story.goes_on else "link_down",
        certainty=Certainty.SUPPORTED if effects else Certainty.SUSPECTED,
        sentence=f"a network port {at}lost its link{again}; the transport errors of the others follow from it",
        reasons_for=(*(quote(told.first) for told in downs[:2]), *(quote(told.first) for told in effects[:1])),
        reasons_against=("a transport error names the peer that did not answer, which need not be where the link is bad",),
        suggested=("Drain the node whose port reports the events, and check cable, optics and switch port (ibqueryerrors)",),
    )


def _unreachable(story: Story) -> Diagnosis:
    facts = [told.first for told in story.told(Kind.SYMPTOM, *_NEVER, "transport_error")]
    return Diagnosis(
        verdict=story.verdict(),
        cause="network_unreachable",
        certainty=Certainty.SUPPORTED,
        sentence="the nodes cannot reach each other over the network that NCCL or gloo chose: it failed before the first step",
        reasons_for=tuple(quote(fact) for fact in facts[:3]),
        reasons_against=("a peer that died at the start would look alike",),
        suggested=(
            "Check which interface and GID are used (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_IB_GID_INDEX), and firewalls between the nodes",
            "Do not restart it unchanged: it never worked",
        ),
    )


def _transport(story: Story) -> Diagnosis:
    facts = [told.first for told in story.told(Kind.SYMPTOM, "transport_error", "link_errors")]
    return Diagnosis(
        verdict=story.verdict(),
        cause="ib_link_flap" if any(fact.word == "link_errors" for fact in facts) else "unknown",
        certainty=Certainty.SUSPECTED,
        sentence="a transfer between two nodes failed after the job had worked: a link, or a peer that is gone",
        reasons_for=tuple(quote(fact) for fact in facts[:3]),
        reasons_against=("no port event was read: a peer that died would look alike",),
        suggested=("Look for port events and error counters on both nodes, and for how the peer's process ended",),
    )


def _peer_to_peer(story: Story) -> Diagnosis:
    facts = [told.first for told in story.told(Kind.SYMPTOM, *_P2P, "p2p_off")]
    return Diagnosis(
        verdict=story.verdict("hang"),
        cause="p2p_broken",
        certainty=Certainty.SUPPORTED if len({fact.word for fact in facts}) > 1 else Certainty.SUSPECTED,
        sentence="direct copies between the GPUs of a node do not work (IOMMU or PCIe access control): the first collective never ends",
        reasons_for=tuple(quote(fact) for fact in facts[:3]),
        suggested=(
            "Switch IOMMU and ACS off in the BIOS and on the PCIe bridges, or set NCCL_P2P_DISABLE=1 until then",
            "Prove it with p2pBandwidthLatencyTest",
        ),
    )
