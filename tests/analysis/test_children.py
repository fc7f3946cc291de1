"""A rank that waits for the processes it has started: their CPU clears it, unless it is the little of a helper, or a loader's loop."""

import msgspec
import pytest

import scenes
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import SystemCall

TORCH = "/env/lib/python3.11/site-packages/torch"
BARRIER = (("barrier", f"{TORCH}/distributed/distributed_c10d.py", 5025), ("main", "/home/u/train.py", 90))
RUNS = (("Popen.wait", "/usr/lib/python3.11/subprocess.py", 1264), ("main", "/home/u/train.py", 70))
DATA = (("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/utils/data/dataloader.py", 1291), ("main", "/home/u/train.py", 50))
LOOP = ("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py", 308)
NO_PYTHON = Missing("not a Python process")


def child(pid, ticks, name="awk", state="R", **facts):
    return scenes.process(pid, name=name, state=state, call=SystemCall("running"), ticks=ticks, **facts)


def look(at_s, *children, children_ticks=0, frames=RUNS, **facts):
    """Rank 0 waits for its children, and rank 1 for rank 0."""
    waits = scenes.process(100, call=SystemCall("wait4"), children_ticks=children_ticks, **facts)
    below = tuple(each if isinstance(each, tuple) else (each, NO_PYTHON) for each in children)
    peer = scenes.rank(1, scenes.process(101), scenes.stack(101, *BARRIER))
    return scenes.snapshot(scenes.rank(0, waits, scenes.stack(100, *frames), *below), peer, at_s=1000.0 + at_s)


def verdict(*looks):
    found = diagnose(looks)
    return found.verdict, found.culprit_ranks


UNDETERMINED, BENIGN, HANG = ("undetermined", None), ("benign_wait", None), ("hang", (0,))


def test_a_command_that_burns_a_core_clears_the_rank_that_waits_for_it():
    """Found by an attack: the main process of a job ran a command for a minute, and was ended for it."""
    found = diagnose((look(0, child(900, 100)), look(5, child(900, 600))))
    assert (found.verdict, found.culprit_ranks, found.awaited_ranks) == ("undetermined", None, (0,))
    assert "while its child 900 (awk) computes" in found.sentence
    assert "used 5000 ms of CPU in 5 s" in found.reasons_against[0]


@pytest.mark.parametrize(("ticks", "is_said"), [(130, UNDETERMINED), (120, HANG), (0, HANG)])
def test_it_takes_a_quarter_of_a_core(ticks, is_said):
    assert verdict(look(0, child(900, 100)), look(5, child(900, 100 + ticks))) == is_said


def test_a_helper_that_wakes_up_now_and_then_clears_nobody_however_short_the_last_pause_was():
    """Looks may be a second apart: 300 ms in one of them are 6 % of a core over five."""
    looks = (look(at_s, child(900, 0, name="wandb-service", state="S")) for at_s in (0, 2, 4))
    assert verdict(*looks, look(5, child(900, 30, name="wandb-service"))) == HANG


def test_several_children_with_a_little_each_are_added_up():
    pool = [(0, 0), (60, 80)]
    assert verdict(*(look(at * 5, child(900, one), child(901, two)) for at, (one, two) in enumerate(pool))) == UNDETERMINED


def test_a_child_that_has_come_to_its_end_clears_nobody_for_long():
    before = [look(5 * at, child(900, 500 * at)) for at in range(4)]
    after = [look(5 * at, children_ticks=1500) for at in range(4, 7)]
    assert verdict(*before, *after) == HANG


def test_short_commands_one_after_another_are_work():
    """Each look meets another one, and what has ended is told by its parent's own counters."""
    looks = [look(5 * at, child(900 + at, 50), children_ticks=450 * at) for at in range(3)]
    found = diagnose(tuple(looks))
    assert (found.verdict, found.awaited_ranks) == ("benign_wait", (0,))
    assert "one process after another (4500 ms of CPU)" in found.sentence


def test_what_a_child_had_used_before_is_not_counted_again_when_it_is_waited_for():
    assert verdict(look(0, child(900, 5000)), look(5, children_ticks=5010)) == HANG


def test_a_monitor_that_runs_a_small_command_now_and_then_clears_nobody():
    assert verdict(*(look(5 * at, children_ticks=30 * at) for at in range(4))) == HANG


def test_another_process_with_the_number_of_one_before_is_another_process():
    renewed = msgspec.structs.replace(child(900, 20), id=msgspec.structs.replace(child(900, 0).id, start_ticks=77777))
    assert verdict(look(0, child(900, 5000)), look(5, renewed)) == HANG


def python_child(ticks, name, *below):
    return child(900, ticks, name=name), scenes.stack(900, ("score", "/home/u/score.py", 7), *below, owns_gil=True)


def test_a_python_child_in_one_line_may_be_scoring_and_is_blamed_on_nobody():
    assert verdict(*(look(5 * at, python_child(500 * at, "python3")) for at in range(8))) == UNDETERMINED


def test_a_loader_in_one_line_is_stuck():
    looks = (look(5 * at, python_child(500 * at, "pt_data_worker", LOOP), frames=DATA) for at in range(8))
    assert verdict(*looks) == HANG


def test_a_command_that_a_loader_runs_clears_it():
    loader = scenes.process(899, name="pt_data_worker", call=SystemCall("wait4")), scenes.stack(899, *RUNS, LOOP)
    assert verdict(*(look(5 * at, loader, child(900, 400 * at, name="ffmpeg"), frames=DATA) for at in range(3))) == UNDETERMINED


def test_a_loop_of_the_ranks_own_is_a_spin_whatever_its_children_do():
    def at(number):
        seen = look(5 * number, child(900, 500 * number), state="R", ticks=500 * number)
        spins = msgspec.structs.replace(seen.ranks[0], stack=scenes.stack(100, ("spin", "/home/u/train.py", 7), owns_gil=True))
        return msgspec.structs.replace(seen, ranks=(spins, seen.ranks[1]))

    assert verdict(*(at(number) for number in range(6))) == HANG


def test_a_last_export_by_a_command_is_no_end_that_is_stuck():
    """Found by an attack: the others had left, and the one that converted the model was ended."""

    def at(number, ticks):
        seen = look(5 * number, child(900, ticks))
        left = msgspec.structs.replace(seen.ranks[1], exit_status=0, process=Missing("ended"), stack=Missing("ended"))
        return msgspec.structs.replace(seen, ranks=(seen.ranks[0], left))

    found = diagnose((at(0, 0), at(1, 500)))
    assert (found.verdict, found.awaited_ranks) == ("undetermined", (0,))
    assert found.sentence.startswith("rank 1 ended well, and rank 0 waits")
    assert diagnose((at(0, 0), at(1, 5))).cause == "teardown_deadlock"
