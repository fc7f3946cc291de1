"""Flight recordings of real gloo ranks, and who they name."""

from pathlib import Path

import pytest
from recorded_ranks import WORLD

from rankpatrol.analysis.collectives import find_desync
from rankpatrol.analysis.desyncs import explain_desync
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.formats.flight_recorder import parse_json, parse_pickle

DATA = Path(__file__).parent.parent / "data" / "flight_recorder"
ALL = frozenset(range(4))


def real(name, kind="json"):
    parse = parse_json if kind == "json" else parse_pickle
    return {rank: parse((DATA / name / f"rank{rank}.{kind}").read_bytes()) for rank in range(4)}


def twice(recordings, blocked, groups=None, world_size=4):
    return find_desync(recordings, recordings, groups or {}, world_size, frozenset(blocked))


@pytest.mark.parametrize("kind", ["json", "pickle"])
def test_the_real_rank_that_never_came_is_named(kind):
    found = twice(real("hang", kind), {0, 1, 2})
    assert (found.kind, found.ranks, found.group, found.sequence) == ("rank_missing_collective", (3,), WORLD, 6)
    assert not found.proved
    assert explain_desync(found).sentence == "rank 3 has not entered all_reduce 6 of group default_pg, in which ranks 0-2 wait"


@pytest.mark.parametrize("name", ["ok", "p2p"])
@pytest.mark.parametrize("kind", ["json", "pickle"])
def test_real_ranks_that_finished_are_left_alone(name, kind):
    assert twice(real(name, kind), ()) is None
    assert find_desync(None, real(name, kind), {}, 4, frozenset()) is None


@pytest.mark.parametrize("kind", ["json", "pickle"])
def test_the_real_rank_with_the_wrong_operation_is_named_and_proved(kind):
    found = twice(real("wrongop", kind), ALL)
    assert (found.kind, found.ranks, found.proved) == ("collective_mismatch_op", (3,), True)
    told = explain_desync(found)
    assert told.certainty is Certainty.PROVED
    assert told.victim_ranks == (0, 1, 2)
    assert told.sentence == "rank 3 waits in broadcast 6 of group default_pg where ranks 0-2 wait in all_reduce 6"
    assert told.place == ("train_step (fr_hang.py:28)" if kind == "pickle" else None)


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "sentence"),
    [
        (
            "skip",
            "rank_missing_collective",
            (3,),
            (
                "rank 3 skipped all_reduce 14 of group default_pg at <module> (train.py:18), "
                "and ran the one at <module> (train.py:21) in its place"
            ),
        ),
        (
            "one_rank_alone",
            "rank_conditional_collective",
            None,
            "only rank 0 runs barrier 15 of group default_pg (at <module> (train.py:19)); ranks 1-3 wait in all_reduce 15",
        ),
        (
            "opposite",
            "opposite_order",
            (1, 2),
            (
                "ranks 1-2 wait for each other: rank 1 waits in all_reduce 5 of group 1:a for rank 2; "
                "rank 2 waits in all_reduce 5 of group 2:b for rank 1"
            ),
        ),
    ],
)
def test_real_ranks_that_disagree_are_proved_to_hang(name, kind, ranks, sentence):
    found = twice(real(name, "pickle"), ALL)
    assert (found.kind, found.ranks, found.proved, found.sentence) == (kind, ranks, True, sentence)
    if kind == "rank_conditional_collective":
        assert explain_desync(found).place == "<module> (train.py:19)"


def test_the_dead_ranks_missing_recording_names_it_but_proves_nothing():
    dumps = real("hang")
    del dumps[3]
    found = twice(dumps, {0, 1, 2})
    assert (found.kind, found.ranks, found.proved) == ("rank_missing_collective", (3,), False)
    assert "no recording of rank 3 tells where it is in this group" in found.reasons_against
