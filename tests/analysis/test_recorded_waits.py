"""What flight recordings say of ranks whose stacks leave it open whether they wait for a peer."""

import msgspec
import pytest
from recorded_ranks import entry, past, recording

import scenes
from rankpatrol.analysis.desync import wants_recordings
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.snapshot import IoCounters, Marks, ProcessGroup, SystemCall

TORCH = "/env/lib/python3.11/site-packages/torch"
MAIN = ("main", "/home/u/train.py", 60)
BACKWARD = (("_engine_run_backward", f"{TORCH}/autograd/graph.py", 979), MAIN)
ALL_REDUCE = (("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3252), MAIN)
RECV = (("recv", f"{TORCH}/distributed/distributed_c10d.py", 2799), MAIN)
WORK_WAIT = (("finish", "/home/u/train.py", 15), MAIN)
PIPELINE = (("_step_microbatches", f"{TORCH}/distributed/pipelining/schedules.py", 683), MAIN)
LOCK = (("wait", "/usr/lib/python3.11/threading.py", 327), ("push", "/home/u/metrics.py", 18), MAIN)
BUFFERS = (
    ("_distributed_broadcast_coalesced", f"{TORCH}/nn/parallel/distributed.py", 2363),
    ("_sync_buffers", f"{TORCH}/nn/parallel/distributed.py", 2240),
    ("forward", f"{TORCH}/nn/parallel/distributed.py", 1700),
    MAIN,
)
PACKS = (
    ("dumps", "/env/lib/python3.11/site-packages/table/core.py", 9),
    ("_object_to_tensor", f"{TORCH}/distributed/distributed_c10d.py", 2900),
    ("broadcast_object_list", f"{TORCH}/distributed/distributed_c10d.py", 3600),
    MAIN,
)
SLEEP = SystemCall("clock_nanosleep", (0, 0, 0, 0))
WORLD = ProcessGroup(name="default_pg", backend="gloo", ranks=(0, 1, 2, 3), timeout_s=1800.0)
LOGS = ProcessGroup(name="1:logs", backend="gloo", ranks=(0, 1, 2, 3), timeout_s=1800.0)
OVER = recording(*past(6))
IN_SEVENTH = recording(*past(6), entry(sequence=7, retired=False))


def rank(number, frames, recorded=OVER, **facts):
    seen = scenes.rank(number, scenes.process(100 + number, **facts), scenes.stack(100 + number, *frames))
    marks = Marks(steps=3, last_step_at_mono_s=1.0, phase="train_step", phase_since_mono_s=0.5, groups=(WORLD, LOGS))
    return msgspec.structs.replace(seen, recording=recorded, marks=marks)


def two_looks(before, after):
    return diagnose((scenes.snapshot(*before), scenes.snapshot(*after, at_s=1003.0)))


def three_in_the_seventh():
    return [rank(number, BACKWARD, IN_SEVENTH) for number in range(3)]


def test_a_rank_whose_autograd_threads_compute_waits_for_nobody_and_is_not_blamed():
    looks = [[*three_in_the_seventh(), rank(3, BACKWARD, ticks=ticks)] for ticks in (0, 300)]
    found = two_looks(*looks)
    assert (found.verdict, found.culprit_ranks, found.victim_ranks) == ("undetermined", None, (0, 1, 2))


def test_one_that_stands_still_in_backward_without_a_collective_is_named():
    look = [*three_in_the_seventh(), rank(3, BACKWARD)]
    found = two_looks(look, look)
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "rank_blocked", (3,))
    assert "no collective of it is pending" in found.sentence


def test_where_nothing_that_is_waited_in_is_recorded_recordings_say_nothing():
    look = [rank(0, ALL_REDUCE), rank(1, BACKWARD), rank(2, ALL_REDUCE), rank(3, ALL_REDUCE)]
    assert two_looks(look, look).verdict == "undetermined"


@pytest.mark.parametrize("frames", [WORK_WAIT, PIPELINE])
def test_ranks_that_wait_for_a_work_are_victims(frames):
    look = [*(rank(number, frames, IN_SEVENTH) for number in range(3)), rank(3, (("load", "/home/u/data.py", 4), MAIN), call=SLEEP)]
    found = two_looks(look, look)
    assert (found.verdict, found.culprit_ranks, found.victim_ranks) == ("hang", (3,), (0, 1, 2))


def test_a_lock_of_python_is_no_work_that_is_waited_for():
    look = [*three_in_the_seventh(), rank(3, LOCK, IN_SEVENTH)]
    assert two_looks(look, look).culprit_ranks == (3,)


def test_recordings_are_asked_for_where_a_wait_shows_no_frames_and_only_once():
    opaque, plain = rank(0, WORK_WAIT), rank(1, LOCK)
    without = [scenes.rank(each.rank, each.process, each.stack) for each in (opaque, plain)]
    assert wants_recordings((scenes.snapshot(*without),))
    assert not wants_recordings((scenes.snapshot(without[1]),))
    assert not wants_recordings((scenes.snapshot(opaque, plain),))


def test_a_model_with_buffers_waits_for_its_peers_before_its_forward():
    look = [*(rank(number, BUFFERS) for number in (1, 2, 3)), rank(0, (("load", "/home/u/data.py", 4), MAIN), call=SLEEP)]
    found = two_looks(look, look)
    assert (found.culprit_ranks, found.victim_ranks) == ((0,), (1, 2, 3))
    assert "in _distributed_broadcast_coalesced" in found.sentence


def test_a_rank_that_packs_an_object_waits_for_nobody():
    looks = [[*three_in_the_seventh(), rank(3, PACKS, state="R", call=SystemCall("running"), ticks=ticks)] for ticks in (0, 300)]
    found = two_looks(*looks)
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def crossed(frames, ticks=0):
    """Rank 0 has begun an operation of another group, in which rank 1 is not; that one waits for it in the common one."""
    logs = past(2, "1:logs")
    begun = recording(*past(6), *logs, entry("1:logs", 3, retired=False))
    pair = {"ranks": (0, 1)}
    marks = Marks(
        steps=3,
        last_step_at_mono_s=1.0,
        phase="train_step",
        phase_since_mono_s=0.5,
        groups=(msgspec.structs.replace(WORLD, **pair), msgspec.structs.replace(LOGS, **pair)),
    )
    seen = rank(0, frames, begun, ticks=ticks), rank(1, ALL_REDUCE, recording(*past(6), *logs, entry(sequence=7, retired=False)))
    return [msgspec.structs.replace(each, marks=marks) for each in seen]


def test_a_circle_is_proved_only_where_each_stands_in_its_operation():
    stands, in_backward = (two_looks(crossed(frames), crossed(frames)) for frames in (ALL_REDUCE, BACKWARD))
    assert (stands.cause, stands.certainty) == ("opposite_order", Certainty.PROVED)
    assert (in_backward.cause, in_backward.certainty) == ("opposite_order", Certainty.SUPPORTED)


def test_an_operation_that_was_begun_and_left_running_ties_nobody_who_computes():
    found = two_looks(crossed(BACKWARD), crossed(BACKWARD, ticks=300))
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def with_bytes(*, wrote):
    return {"io": IoCounters(0, wrote, 0, 0)}


def test_a_large_transfer_is_no_hang_while_bytes_move():
    still = [rank(number, ALL_REDUCE, IN_SEVENTH) for number in range(4)]
    moving = [rank(0, ALL_REDUCE, IN_SEVENTH, **with_bytes(wrote=1 << 22)), *still[1:]]
    assert two_looks(still, still).cause == "collective_started_everywhere"
    found = two_looks(still, moving)
    assert (found.verdict, found.culprit_ranks) == ("benign_wait", None)
    assert "gets on" in found.sentence


def test_who_is_missing_while_it_gets_on_is_awaited_and_not_blamed():
    still = [*three_in_the_seventh(), rank(3, ALL_REDUCE)]
    moving = [*three_in_the_seventh(), rank(3, ALL_REDUCE, **with_bytes(wrote=1 << 22))]
    assert two_looks(still, still).verdict == "hang"
    assert two_looks(still, moving).verdict == "benign_wait"


def test_who_waits_for_a_message_that_nobody_sends_is_not_blamed_for_what_it_misses():
    look = [*three_in_the_seventh(), rank(3, RECV)]
    found = two_looks(look, look)
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "p2p_mismatch", None)
    assert "a send and a recv do not match" in found.sentence


def test_several_that_wait_alike_below_a_call_without_frames_are_not_blamed():
    """`store.get()` of a key that rank 0 never sets."""
    asks = (("fetch", "/home/u/train.py", 28), MAIN)
    look = [rank(0, ALL_REDUCE), *(rank(number, asks, call=SystemCall("poll", (0, 1, 1000))) for number in (1, 2, 3))]
    found = two_looks(look, look)
    assert (found.verdict, found.culprit_ranks, found.victim_ranks) == ("hang", None, (0,))
    assert found.sentence.endswith("who of them is to blame, or who else, is not seen")
    alone = [*(rank(number, ALL_REDUCE) for number in (0, 1, 2)), look[3]]
    assert two_looks(alone, alone).culprit_ranks == (3,)
