"""The pace's shell, on real processes that look like two ranks of a job: one works, the other waits for it."""

import subprocess
import sys

import pytest

from clocks import FakeClock
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.pace_watch import PaceWatch
from rankpatrol.agent.roster import Attempt
from rankpatrol.analysis.pace.records import PaceState, Slowed
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import Marks
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.process import identify

COMPUTES = "print('ready', flush=True)\nwhile True: sum(range(1000))"
WAITS = "import threading; print('ready', flush=True); threading.Event().wait()"
FOUND = Diagnosis(verdict="slow", cause="straggler", culprit_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="they wait for rank 0")


class Told:
    def __init__(self):
        self.said, self.closed = [], []

    def tell(self, attempt, onset_unix_s, diagnosis):
        self.said.append((attempt, onset_unix_s, diagnosis))

    def close(self, how, cause=None):
        self.closed.append(how)


@pytest.fixture
def ranks():
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for code in (COMPUTES, WAITS)]
    for process in started:
        process.stdout.readline()
    yield started
    for process in started:
        process.kill()
        process.communicate()


def watch_of(ranks, tmp_path):
    places = tuple(_place(number, identify(process.pid)) for number, process in enumerate(ranks))
    attempt = Attempt(number=0, places=places, exits={}, gone=frozenset())
    clock, told = FakeClock(), Told()
    eyes = Eyes("job", tmp_path, clock)
    eyes.begin(attempt)
    watch = PaceWatch(eyes, told, clock)
    watch.begin()
    eyes.light()
    return watch, eyes, attempt, clock, told


def _place(rank, process):
    return RankPlace(
        attempt=0,
        rank=rank,
        local_rank=rank,
        world_size=2,
        node="n",
        shim_pid=process.pid,
        shim_start_ticks=process.start_ticks,
        pid=process.pid,
        start_ticks=process.start_ticks,
        torchrun_restarts=0,
        scheduler_restarts=0,
        started_unix_s=0.0,
    )


def mark(eyes, steps, at_s, phase="train_step"):
    for rank in (0, 1):
        eyes.marks[rank] = Marks(steps=steps, last_step_at_mono_s=at_s, phase=phase, phase_since_mono_s=0.0, groups=())


def until(look, wanted):
    for _ in range(2000):
        if (seen := look()) == wanted:
            return seen
    return seen


def test_who_waits_and_who_works_is_seen_of_real_processes(ranks, tmp_path):
    watch, *_ = watch_of(ranks, tmp_path)
    assert until(watch._doing, {0: "running", 1: "futex"}) == {0: "running", 1: "futex"}


def test_a_job_that_is_slow_is_told_and_nobody_is_named_for_what_was_always_so(ranks, tmp_path):
    watch, eyes, attempt, clock, told = watch_of(ranks, tmp_path)
    steps = 0
    for second in range(150):
        clock.advance(1.0)
        steps += 6 if second < 40 else 2
        eyes.light()
        mark(eyes, steps, clock.mono_s())
        watch.round(attempt, odd=False)
        for _ in range(3):
            watch.peek()
    # In its past the one worked and the other waited just the same: that names nobody, and a job so slow is still told.
    ((number, _, found),) = told.said
    assert number == 0
    assert found.cause in {"straggler_unattributable", "host_contention"}
    assert found.culprit_ranks is None


def test_nothing_is_weighed_while_the_judge_looks_closer(ranks, tmp_path):
    watch, eyes, attempt, clock, told = watch_of(ranks, tmp_path)
    for second in range(90):
        clock.advance(1.0)
        mark(eyes, second * 2, clock.mono_s())
        watch.round(attempt, odd=True)
    assert watch._state.past == ()
    assert told.said == []


def test_a_checkpoint_is_no_slow_step(ranks, tmp_path):
    watch, eyes, attempt, clock, _ = watch_of(ranks, tmp_path)
    mark(eyes, 100, clock.mono_s(), phase="checkpoint")
    watch.round(attempt, odd=False)
    assert watch._state.anchor is None


def test_a_rank_that_is_gone_ends_the_comparison(ranks, tmp_path):
    watch, eyes, attempt, clock, _ = watch_of(ranks, tmp_path)
    mark(eyes, 100, clock.mono_s())
    ranks[1].kill()
    ranks[1].wait()
    eyes.light()
    watch.round(attempt, odd=False)
    assert watch._state.anchor is None


def test_stacks_refute_a_name_where_the_rank_waits_itself(ranks, tmp_path):
    watch, _, attempt, _, told = watch_of(ranks, tmp_path)
    watch._borne_out = lambda rank: False
    watch._slowed(attempt, Slowed(onset_s=990.0, diagnosis=FOUND))
    assert told.said == []
    assert watch._state.refuted
    watch._borne_out = lambda rank: True
    watch._state = PaceState()
    watch._slowed(attempt, Slowed(onset_s=990.0, diagnosis=FOUND))
    assert told.said == [(0, 1.8e9 - 10.0, FOUND)]


def test_a_rank_that_computes_is_borne_out_by_its_stacks(ranks, tmp_path):
    watch, *_ = watch_of(ranks, tmp_path)
    assert watch._borne_out(0)
