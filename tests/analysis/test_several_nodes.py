"""Jobs on several nodes: a silent node, a dead link, a slow one, and where a named rank is."""

import msgspec
import pytest

from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.analysis.several import degraded_link, placed
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import SocketBytes
from scenes import process, rank, snapshot, stack

ALL_REDUCE = (("all_reduce", "torch/distributed/distributed_c10d.py", 1), ("main", "train.py", 9))
SLEEPS = (("main", "train.py", 20),)
NODES = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.3", "n4": "10.0.0.4"}


def connection(here, there, **facts):
    return SocketBytes(inode=1, local=f"{NODES[here]}:5000", remote=f"{NODES[there]}:6000", received_bytes=0, **facts)


def on(node, number, frames=ALL_REDUCE, sockets=()):
    sample = rank(number, process(100 + number, sockets=tuple(sockets)), stack(100 + number, *frames))
    return msgspec.structs.replace(sample, node=node)


def unseen(node, number):
    return msgspec.structs.replace(rank(number, Missing(f"node {node} does not answer"), Missing("no stack")), node=node)


def seen(*ranks, silent=(), **facts):
    found = msgspec.structs.replace(snapshot(*ranks), silent_nodes=dict.fromkeys(silent, 12.0), **facts)
    return (msgspec.structs.replace(found, at_mono_s=found.at_mono_s - 5), found)


def test_a_node_that_tells_nothing_while_all_others_wait_is_missing():
    found = diagnose(seen(on("n1", 0), on("n2", 1), unseen("n3", 2), unseen("n3", 3), silent=["n3"]))
    assert (found.verdict, found.cause, found.culprit_ranks, found.victim_ranks) == ("hang", "node_missing", (2, 3), (0, 1))
    assert found.certainty is Certainty.SUPPORTED
    assert found.sentence == "n3 has told nothing for 12 s; ranks 0-1 wait for ranks 2-3 there"


def test_what_nobody_acknowledges_is_a_link():
    dead = connection("n2", "n3", unacked_segments=3, retransmits=6)
    found = diagnose(seen(on("n1", 0), on("n2", 1, sockets=[dead]), unseen("n3", 2), silent=["n3"]))
    assert (found.cause, found.culprit_ranks) == ("link_down", (2,))
    assert "nothing that rank 1 send there is acknowledged" in found.sentence.replace("sends", "send")


def test_whoever_hears_half_of_the_nodes_or_less_is_not_sure_that_it_is_not_itself():
    found = diagnose(seen(on("n1", 0), on("n1", 1), unseen("n2", 2), silent=["n2"]))
    assert found.certainty is Certainty.SUSPECTED, "suspected is never acted upon"
    assert "may be the one that is cut off" in found.reasons_against[0]


def test_a_rank_that_is_awaited_elsewhere_goes_before_a_silent_node():
    found = diagnose(seen(on("n1", 0), on("n2", 1, SLEEPS), unseen("n3", 2), silent=["n3"]))
    assert found.cause != "node_missing"
    assert found.culprit_ranks in {None, (1,)}


def test_a_silent_node_alone_blames_nobody():
    found = diagnose(seen(on("n1", 0, SLEEPS), on("n2", 1, SLEEPS), unseen("n3", 2), silent=["n3"]))
    assert found.culprit_ranks is None


@pytest.mark.parametrize("facts", [{}, {"unacked_segments": 5}, {"retransmits": 9}, {"unacked_segments": 2, "retransmits": 2}])
def test_a_busy_link_is_no_dead_one(facts):
    alive = connection("n1", "n2", **facts)
    found = diagnose(seen(on("n1", 0, sockets=[alive]), on("n2", 1, sockets=[connection("n2", "n1")])))
    assert found.cause != "link_down"


def test_a_link_between_two_nodes_that_are_heard_names_both_ends_and_blames_no_rank():
    dead = {"unacked_segments": 4, "retransmits": 7}
    found = diagnose(
        seen(
            on("n1", 0, sockets=[connection("n1", "n2")]),
            on("n2", 1, sockets=[connection("n2", "n3", **dead)]),
            on("n3", 2, sockets=[connection("n3", "n2", **dead)]),
        )
    )
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "link_down", None)
    assert found.sentence.startswith("nothing that is sent between n2 and n3 arrives")


def test_one_node_in_all_broken_pairs_is_the_place():
    dead = {"unacked_segments": 4, "retransmits": 7}
    found = diagnose(
        seen(
            on("n1", 0, sockets=[connection("n1", "n3", **dead)]),
            on("n2", 1, sockets=[connection("n2", "n3", **dead)]),
            on("n3", 2, sockets=[connection("n3", "n1", **dead), connection("n3", "n2", **dead)]),
        )
    )
    assert (found.cause, found.culprit_ranks) == ("link_down", (2,))


def test_the_sentence_says_on_which_node_a_named_rank_is_where_there_are_several():
    several = diagnose(seen(on("n1", 0), on("n2", 1, SLEEPS)))
    assert (several.culprit_ranks, several.sentence.split(" sleeps")[0].split(" stands")[0][:11]) == ((1,), "rank 1 (n2)")
    assert "(n1)" not in diagnose(seen(on("n1", 0), on("n1", 1, SLEEPS))).sentence


def test_so_does_that_of_a_crash():
    died = Diagnosis(verdict="crash", cause="unknown", culprit_ranks=(1,), sentence="rank 1 died of SIGBUS")
    assert placed(died, (on("n1", 0), on("n2", 1))).sentence == "rank 1 (n2) died of SIGBUS"
    assert placed(died, (on("n1", 0), on("n1", 1))) == died


SLOW = Diagnosis(verdict="slow", cause="straggler_unattributable", sentence="the job is slow", reasons_for=("step times",))


def looks(*moments):
    """One look a moment, in each of which these connections, `here>there`, have something on its way."""

    def sample(number, here, busy):
        sockets = [
            connection(here, there, unacked_segments=4 * (f"{here}>{there}" in busy), round_trip_s=0.05) for there in NODES if there != here
        ]
        return on(here, number, sockets=sockets)

    return tuple(snapshot(*(sample(number, here, busy.split()) for number, here in enumerate(NODES))) for busy in moments)


def test_a_node_that_all_which_is_on_its_way_goes_to_or_comes_from_has_a_bad_link():
    found = degraded_link(SLOW, looks(*["n3>n4 n2>n3"] * 5, "n3>n4", "", "n1>n2"))
    assert (found.verdict, found.cause, found.certainty, found.culprit_ranks) == ("slow", "link_degraded", Certainty.SUPPORTED, None)
    assert "what is sent to and from n3 is long on its way" in found.sentence
    assert "in 6 of 8 looks something was on its way to or from n3, and nowhere else" in found.reasons_for
    assert "there and back it takes 50.0 ms in the median" in found.reasons_for


@pytest.mark.parametrize(
    "moments",
    [
        [""] * 8,
        ["n3>n4 n2>n3"] * 4 + [""] * 4,
        ["n1>n2 n2>n3 n3>n4 n4>n1"] * 8,
        ["n3>n4"] * 8,
        ["n3>n4 n2>n3"] * 5,
    ],
    ids=["nothing", "seldom", "everywhere", "one pair has two ends", "too few looks"],
)
def test_what_is_everywhere_or_seldom_or_between_two_names_no_link(moments):
    assert degraded_link(SLOW, looks(*moments)) is SLOW


def test_a_straggler_that_is_named_is_no_link():
    named = msgspec.structs.replace(SLOW, cause="straggler", culprit_ranks=(1,))
    assert degraded_link(named, looks(*["n3>n4 n2>n3"] * 8)) is named
