"""A rank that moves little, or all at once, is not one that stands still: slow disks, one long call, files read in pieces."""

import pytest

import scenes
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.snapshot import IoCounters, SystemCall

BACKWARD = (("_engine_run_backward", "/env/lib/python3.11/site-packages/torch/autograd/graph.py", 979), ("main", "/home/u/train.py", 60))
SAVES = (("write", "/home/u/store.py", 20), ("main", "/home/u/train.py", 55))
SLEEP_CALL = SystemCall("clock_nanosleep", (0, 0, 0, 0))


def look(at_s=0.0, *, call=SLEEP_CALL, **facts):
    """Rank 1 waits for rank 0, which is in a call of the user's code."""
    waited = scenes.rank(0, scenes.process(100, call=call, **facts), scenes.stack(100, *SAVES))
    return scenes.snapshot(waited, scenes.rank(1, scenes.process(101), scenes.stack(101, *BACKWARD)), at_s=1000.0 + at_s)


@pytest.mark.parametrize("flowing", [(0, 0, 1 << 20, 0), (0, 0, 0, 1 << 20)])
def test_one_long_call_that_moves_bytes_to_or_from_storage_is_work(flowing):
    """Found by an attack: one read of a large array counts as read only when it returns, and its rank was ended."""
    assert diagnose((look(), look(2, io=IoCounters(*flowing)))).verdict == "benign_wait"


def written(*sizes, pause_s=2):
    """Looks at a rank that sleeps in user code, after it has written so much."""
    return tuple(look(pause_s * at, io=IoCounters(0, size, 0, 0)) for at, size in enumerate(sizes))


def test_a_slow_disk_that_takes_a_little_all_the_time_is_work():
    """Found by an attack: 10 kB a second, each 4 kB of it synced, and the rank was ended."""
    found = diagnose(written(*range(0, 100_000, 20_000)))
    assert (found.verdict, found.awaited_ranks) == ("benign_wait", (0,))
    assert "wrote 80000 bytes in 5 looks" in found.sentence


@pytest.mark.parametrize(
    ("sizes", "pause_s"),
    [
        pytest.param(range(0, 18_000, 1500), 5, id="heartbeats of 300 bytes a second"),
        pytest.param((0, 50_000, 100_000, 100_000), 2, id="it has stopped"),
        pytest.param((0, 50_000, 100_000, 100_500), 2, id="it has stopped, and heartbeats go on"),
        pytest.param((0, 20_000, 40_000), 2, id="too little to tell"),
    ],
)
def test_a_little_that_is_written_is_no_work(sizes, pause_s):
    assert diagnose(written(*sizes, pause_s=pause_s)).verdict == "hang"


def at_offset(offset_bytes, path="/data/shard-0042.tar"):
    return look(call=SystemCall("read", (5, 0, 4096), path=path, offset_bytes=offset_bytes))


def test_a_file_of_which_ever_more_has_been_read_is_work():
    assert diagnose((at_offset(4096), at_offset(8192))).verdict == "benign_wait"


def test_a_file_that_is_read_at_the_same_place_or_from_the_start_or_another_one_is_no_work():
    for before, now in ((4096, 4096), (4096, 0)):
        assert diagnose((at_offset(before), at_offset(now))).verdict == "hang"
    assert diagnose((at_offset(4096), at_offset(8192, "/data/shard-0043.tar"))).verdict == "hang"
