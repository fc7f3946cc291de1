"""Jobs that go on at a worse pace because something they share is worse: the CPUs of a host, or a link. Nobody's rank is to blame."""

from collections import defaultdict

from rankpatrol.analysis.story import Story
from rankpatrol.analysis.told.pace import slowdown
from rankpatrol.analysis.told.words import quote
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.testimony import Fact, Kind

# Of ten seconds, this share somebody waited for a CPU (proc pressure, `some`): a host that only works hard shows a fraction of it.
_PRESSED_SHARE = 60.0
_OVERLOADED = 2.0  # runnable processes a CPU


def contended(story: Story) -> Diagnosis | None:
    """A host whose CPUs are wanted by more than they can serve, under a job that became slower."""
    pressed = [fact for fact in _last(story, "cpu_pressure") if (fact.number("share") or 0) >= _PRESSED_SHARE]
    loaded = [fact for fact in _last(story, "load") if (fact.number("load") or 0) >= _OVERLOADED * (fact.number("cpus") or 1)]
    paces = slowdown(story)
    if not (pressed or loaded) or paces is None or story.waits or story.went_down:
        return None
    hosts = sorted({fact.values["host"] for fact in pressed + loaded if "host" in fact.values})
    return Diagnosis(
        verdict="slow",
        cause="host_contention",
        certainty=Certainty.SUPPORTED if pressed and loaded else Certainty.SUSPECTED,
        sentence=f"a step takes {paces[0]:g} s where it took {paces[1]:g} s, and the CPUs of {', '.join(hosts) or 'a host'} are overloaded",
        reasons_for=tuple(quote(fact) for fact in (pressed + loaded)[:3]),
        reasons_against=("whose processes they are is not the job's to judge: nothing is to be killed without asking",),
        suggested=("Look who runs there (top), and bind the ranks to CPUs of their own (`rankpatrol affinity plan`)",),
    )


def degraded_link(story: Story) -> Diagnosis | None:
    """A port at a lower rate than the same port of other hosts, or a PCIe link that came up narrower, and nothing that ended."""
    slow = _slower_ports(story) + _last(story, "downgraded")
    if not slow or story.waits or story.went_down or story.says(Kind.SYMPTOM, "link_down", "transport_error"):
        return None
    errors = [told.last for told in story.told(Kind.SYMPTOM, "link_errors")]
    paces = slowdown(story)
    pace = f"; a step takes {paces[0]:g} s where it took {paces[1]:g} s" if paces is not None else ""
    return Diagnosis(
        verdict="slow" if paces is not None or story.sees_a_job else "node_fault",
        cause="link_degraded",
        certainty=Certainty.SUPPORTED if paces is not None else Certainty.SUSPECTED,
        sentence=f"a link runs below its rate{_at(slow)}, and all wait for what goes through it{pace}",
        reasons_for=tuple(quote(fact) for fact in (slow + errors)[:3]),
        suggested=("Drain that node, and check cable, transceiver and switch port (error counters), then let the link train again",),
    )


def _at(facts: list[Fact]) -> str:
    hosts = sorted({fact.values["host"] for fact in facts if "host" in fact.values})
    return f" on {', '.join(hosts)}" if hosts else ""


def _last(story: Story, word: str) -> list[Fact]:
    return [told.last for told in story.told(Kind.OBSERVED, word)]


def _slower_ports(story: Story) -> list[Fact]:
    """Ports whose rate lies below that of at least two alike: with two ports, which of them is right is not said."""
    alike: dict[str, list[Fact]] = defaultdict(list)
    for fact in _last(story, "port_rate"):
        alike[fact.values.get("device", "")].append(fact)
    found = []
    for facts in alike.values():
        rates = sorted(fact.number("rate") or 0 for fact in facts)
        if len(rates) >= 3 and rates[-1] == rates[-2]:
            found += [fact for fact in facts if (fact.number("rate") or 0) < rates[-1]]
    return found
