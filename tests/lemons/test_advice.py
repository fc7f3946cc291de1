"""A node is left out only for what may be of the machine, again and again, and more than other nodes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.lemons.advice import HARDWARE_CAUSES, PERHAPS_CAUSES, Weights, exclude_option, node_affinity, stories
from rankpatrol.lemons.records import Memory, NodeIncident, NodeUse

NOW = 1.8e9
DAY = 86400


def incident(node="bad", cause="gpu_lost", job="j1", number=1, days_ago=1.0, device="local rank 3"):
    return NodeIncident(
        job=job,
        incident=number,
        at_unix_s=NOW - days_ago * DAY,
        node=node,
        device=device,
        verdict="crash",
        cause=cause,
        sentence="it failed",
    )


def uses(*nodes, jobs=("j1", "j2", "j3", "j4")):
    return tuple(NodeUse(job=job, node=node, at_unix_s=NOW - DAY) for node in nodes for job in jobs)


def lemons(*incidents, nodes=("bad", "good", "fine")):
    return [story.node for story in stories(Memory(incidents=incidents, uses=uses(*nodes)), NOW, Weights()) if story.lemon]


def test_two_incidents_of_its_hardware_make_a_lemon():
    assert lemons(incident(number=1)) == []
    assert lemons(incident(number=1), incident(number=2)) == ["bad"]


@pytest.mark.parametrize(
    "cause", ["user_exception", "data_loader_worker_stuck", "rank_conditional_collective", "disk_full", "gpu_oom", "unknown"]
)
def test_what_the_program_did_makes_none_however_often(cause):
    assert lemons(*(incident(cause=cause, job=f"j{n % 4}", number=n) for n in range(20))) == []


def test_what_may_be_of_the_machine_counts_when_it_comes_again_in_another_job():
    one_job = [incident(cause="sigsegv", number=number) for number in range(5)]
    assert lemons(*one_job) == []
    assert lemons(*one_job[:2], incident(cause="sigsegv", job="j2")) == ["bad"]


def test_a_job_that_fails_everywhere_makes_no_lemon():
    everywhere = [
        incident(node=node, cause="sigsegv", job=job, number=n) for node in ("bad", "good", "fine") for job in ("j1", "j2") for n in (1, 2)
    ]
    assert lemons(*everywhere) == []


def test_the_only_node_that_is_known_is_not_left_out():
    found = stories(Memory(incidents=(incident(number=1), incident(number=2))), NOW, Weights())
    assert [story.lemon for story in found] == [None]
    assert "no other node is known" in found[0].weighed


def test_time_heals():
    assert lemons(incident(number=1, days_ago=31), incident(number=2)) == []


def test_the_device_with_most_incidents_is_told_first():
    memory = Memory(incidents=(incident(number=1), incident(number=2), incident(number=3, device="local rank 0")))
    (story,) = stories(memory, NOW, Weights())
    assert [(each.device, each.incidents) for each in story.devices] == [("local rank 3", 2), ("local rank 0", 1)]


def test_schedulers_are_told_in_their_own_words():
    assert exclude_option(["n2", "n1"]) == "--exclude=n1,n2"
    terms = node_affinity(["n2", "n1"])["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}]}]


CAUSES = st.sampled_from([*sorted(HARDWARE_CAUSES)[:2], *sorted(PERHAPS_CAUSES)[:2], "user_exception"])
INCIDENTS = st.builds(
    incident,
    node=st.sampled_from(["a", "b", "c"]),
    cause=CAUSES,
    job=st.sampled_from(["j1", "j2", "j3"]),
    number=st.integers(0, 9),
    days_ago=st.floats(-5, 60),
)


@given(st.lists(INCIDENTS, max_size=12))
def test_nodes_alike_in_everything_are_never_lemons(incidents):
    alike = [msgspec.structs.replace(each, node=node) for each in incidents for node in ("a", "b", "c")]
    assert lemons(*alike, nodes=("a", "b", "c")) == []


@given(st.lists(INCIDENTS, max_size=12))
def test_every_lemon_says_why_and_every_other_why_not(incidents):
    for story in stories(Memory(incidents=tuple(incidents)), NOW, Weights()):
        assert bool(story.lemon) != bool(story.weighed)
