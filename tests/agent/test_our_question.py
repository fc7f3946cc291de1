"""What a rank does for a question of ours is no work of its own."""

import scenes
from rankpatrol.agent.eyes import with_cost
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.snapshot import SystemCall

LOOP = ("spin", "/home/u/train.py", 7)
BACKWARD = ("_engine_run_backward", "/env/lib/python3.11/site-packages/torch/autograd/graph.py", 979)

COST = scenes.process(100, minor_faults=7), scenes.process(100, minor_faults=47)


def look(number, faults=0):
    busy = scenes.process(100, state="R", call=SystemCall("running"), ticks=200 * number, minor_faults=faults)
    victim = scenes.rank(1, scenes.process(101), scenes.stack(101, BACKWARD))
    return scenes.snapshot(scenes.rank(0, busy, scenes.stack(100, LOOP, owns_gil=True)), victim)


def test_faults_of_our_question_are_taken_out_of_the_looks_before_it():
    before, after = [look(number) for number in range(5)], look(5, faults=40)
    assert diagnose((*before, after)).verdict == "benign_wait"
    assert diagnose((*(with_cost(each, 0, *COST) for each in before), after)).cause == "spin"


def test_no_other_rank_is_excused():
    faults = [each.process.minor_faults for each in with_cost(look(0), 0, *COST).ranks]
    assert faults == [40, 0]


def stands(number, ticks=0, faults=0):
    lock = scenes.process(100, ticks=ticks, minor_faults=faults, resident_bytes=(1 << 28) + faults * 4096)
    victim = scenes.rank(1, scenes.process(101), scenes.stack(101, BACKWARD))
    return scenes.snapshot(scenes.rank(0, lock, scenes.stack(100, ("take", "/home/u/train.py", 7))), victim, at_s=1000.0 + number)


def test_what_an_answer_of_2000_entries_costs_is_no_work():
    """0.15 s of CPU, and memory for it."""
    cost = (process_of(stands(0)), process_of(stands(0, ticks=15, faults=600)))
    before, after = stands(0), stands(3, ticks=15, faults=600)
    assert diagnose((before, before, after)).verdict == "benign_wait"
    found = diagnose((with_cost(before, 0, *cost), with_cost(before, 0, *cost), after))
    assert (found.verdict, found.culprit_ranks) == ("hang", (0,))


def process_of(look):
    return look.ranks[0].process
