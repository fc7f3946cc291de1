"""Who stands above a process, by a table of parents that was read while processes came and went."""

import os

import pytest

from clocks import FakeClock
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Attempt
from rankpatrol.collect.candidates import candidates
from rankpatrol.core.lineage import above
from rankpatrol.launch.rundir import RankPlace


@pytest.mark.parametrize(
    ("pid", "parents", "line"),
    [
        (7, {7: 5, 5: 2, 2: 1, 1: 0}, (5, 2, 1)),
        (7, {7: 5}, (5,)),
        (1, {1: 0}, ()),
        (9, {}, ()),
        (7, {7: 5, 5: 6, 6: 5}, (5, 6)),
        (7, {7: 7}, (7,)),
    ],
)
def test_the_line_ends_at_init_or_where_it_turns_back(pid, parents, line):
    assert above(pid, parents) == line


def test_only_the_processes_that_are_named_are_looked_at():
    us = os.getpid()
    assert [each.id.pid for each in candidates((), ("",), (us, 2**22 + 1))] == [us]


class Counted(tuple):
    """Says how often it was gone through."""

    __slots__ = ()
    rounds = 0

    def __iter__(self):
        Counted.rounds += 1
        return super().__iter__()


def test_a_round_goes_through_the_ranks_a_few_times_however_many_they_are(tmp_path):
    """Once for each rank were a thousand times a thousand, each second."""
    numbers = {
        "shim_pid": 2**22 + 1,
        "shim_start_ticks": 1,
        "pid": 2**22 + 1,
        "start_ticks": 1,
        "torchrun_restarts": 0,
        "scheduler_restarts": 0,
    }
    places = Counted(
        RankPlace(attempt=0, rank=rank, local_rank=rank, world_size=200, node="n", started_unix_s=0.0, **numbers) for rank in range(200)
    )
    eyes = Eyes("job", tmp_path, FakeClock())
    eyes.begin(Attempt(number=0, places=places, exits={}, gone=frozenset()))
    assert isinstance(eyes.attempt.places, Counted)
    eyes.light()
    Counted.rounds = 0
    assert len(eyes.light()) == 200
    assert 0 < Counted.rounds < 20
