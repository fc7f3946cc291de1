"""What a rank does for a question of ours is no work of its own."""

import scenes
from rankpatrol.agent.eyes import with_more_faults
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.snapshot import SystemCall

LOOP = ("spin", "/home/u/train.py", 7)
BACKWARD = ("_engine_run_backward", "/env/lib/python3.11/site-packages/torch/autograd/graph.py", 979)


def look(number, faults=0):
    busy = scenes.process(100, state="R", call=SystemCall("running"), ticks=200 * number, minor_faults=faults)
    victim = scenes.rank(1, scenes.process(101), scenes.stack(101, BACKWARD))
    return scenes.snapshot(scenes.rank(0, busy, scenes.stack(100, LOOP, owns_gil=True)), victim)


def test_faults_of_our_question_are_taken_out_of_the_looks_before_it():
    before, after = [look(number) for number in range(5)], look(5, faults=40)
    assert diagnose((*before, after)).verdict == "benign_wait"
    assert diagnose((*(with_more_faults(each, 0, 40) for each in before), after)).cause == "spin"


def test_no_other_rank_is_excused():
    faults = [each.process.minor_faults for each in with_more_faults(look(0), 0, 40).ranks]
    assert faults == [40, 0]
