"""The recorder writes what the judge was told, and nothing waits for the place it is carried to."""

import os
import random
import threading

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.agent.recorder import NAME, NoRecorder, TapeRecorder, carry, recorder_of
from rankpatrol.judge.judge import step
from rankpatrol.judge.records import AttemptBegan, JudgeState, Observed, Policy, RankActivity
from rankpatrol.judge.tape import TapeBegan, TapeStopped, WallMoved, read_tape
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.replay.play import replay
from rankpatrol.system.background import Courier


class Quiet:
    def __init__(self):
        self.said = []

    def say(self, what, style="plain"):
        self.said.append(what)


class Desk:
    """A recorder with its folders, fed by a training of eight ranks."""

    def __init__(self, folder, ranks=8):
        self.spool, self.job = folder / "spool", folder / "job"
        self.spool.mkdir(exist_ok=True)
        self.job.mkdir(exist_ok=True)
        self.clock, self.voice, self.courier, self.state = FakeClock(), Quiet(), Courier("test"), JudgeState()
        self.recorder = TapeRecorder(spec(self.job), self.spool, self.courier, self.clock, self.voice)
        self.counts, self.dice = [0] * ranks, random.Random(7)

    def begin(self):
        self.recorder.begin(Policy(), self.state)
        self.tell(AttemptBegan(at_s=self.clock.mono_s(), attempt=0, world_size=len(self.counts)))

    def tell(self, event):
        self.state, findings = step(self.state, event, Policy())
        self.recorder.heard(event, findings)

    def round(self):
        self.clock.advance(1.0 + self.dice.random() / 100)
        for rank in range(len(self.counts)):
            self.counts[rank] += self.dice.randint(60, 99)
        self.tell(Observed(at_s=round(self.clock.mono_s(), 3), ranks=tuple(map(self._activity, range(len(self.counts))))))

    def _activity(self, rank):
        step_now, count = self.counts[0] // 16, self.counts[rank]
        facts = {"main_thread_ticks": count, "switches": count * 3, "step": None if rank else step_now, "marked_steps": step_now}
        return RankActivity(rank=rank, ended=False, joined=True, traced=False, stopped=False, **facts)

    def carried(self):
        assert self.courier.delivered(5.0)
        return (self.job / NAME).read_bytes()


def spec(job, *, record=True):
    return JobSpec(
        job="job", job_dir=str(job), command=(), policy="recover", patience_s=180.0, checkpoints=None, started_unix_s=0.0, record=record
    )


def test_nothing_is_recorded_unless_it_was_asked_for(tmp_path):
    assert isinstance(recorder_of(spec(tmp_path, record=False), RunDir(tmp_path), Courier("test"), FakeClock(), Quiet()), NoRecorder)


def test_what_is_carried_to_the_job_directory_can_be_replayed(tmp_path):
    desk = Desk(tmp_path)
    desk.begin()
    for _ in range(25):
        desk.round()
    desk.recorder.flush()
    content = desk.carried()
    assert content == (desk.spool / NAME).read_bytes()
    assert sum(isinstance(item, Observed) for item in read_tape(content.splitlines())) == 25


def test_an_hour_of_eight_ranks_takes_less_than_half_a_megabyte(tmp_path):
    desk = Desk(tmp_path)
    desk.begin()
    before = desk.recorder._size_bytes
    for _ in range(600):
        desk.round()
    assert (desk.recorder._size_bytes - before) * 6 < 500_000


def test_a_hanging_job_directory_holds_nobody_up_and_gets_all_of_it_later(tmp_path):
    desk, hold = Desk(tmp_path), threading.Event()
    desk.courier.send(lambda: hold.wait(10) and None)
    desk.begin()
    for _ in range(200):
        desk.round()
    assert not (desk.job / NAME).exists()
    assert desk.courier.waiting() <= 3, "a recording takes one place in the courier's bag, however long the wait"
    hold.set()
    desk.recorder.flush()
    assert desk.carried() == (desk.spool / NAME).read_bytes()


def test_a_recording_that_has_grown_to_its_cap_says_so_and_ends_there(tmp_path):
    desk = Desk(tmp_path)
    desk.recorder.most_bytes = 20_000
    desk.begin()
    for _ in range(1000):
        desk.round()
    assert len(desk.carried()) < 21_000
    assert ["nothing more is recorded" in line for line in desk.voice.said] == [True]
    assert isinstance(list(read_tape(desk.carried().splitlines()))[-1], TapeStopped)


def test_a_new_agent_goes_on_where_a_killed_one_was_cut_off(tmp_path):
    desk = Desk(tmp_path)
    desk.begin()
    for _ in range(20):
        desk.round()
    desk.carried()
    os.truncate(desk.spool / NAME, (desk.spool / NAME).stat().st_size - 3)
    os.truncate(desk.job / NAME, (desk.job / NAME).stat().st_size - 3)
    successor = Desk(tmp_path)
    successor.begin()
    for _ in range(20):
        successor.round()
    items = list(read_tape(successor.carried().splitlines()))
    assert sum(isinstance(item, TapeBegan) for item in items) == 2
    assert replay(items).as_said


@pytest.mark.parametrize("moved_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_is_written_down_once(tmp_path, moved_s):
    desk = Desk(tmp_path)
    desk.begin()
    for _ in range(20):
        desk.round()
    desk.clock._unix_s += moved_s
    for _ in range(20):
        desk.round()
    desk.recorder.flush()
    moves = [item for item in read_tape(desk.carried().splitlines()) if isinstance(item, WallMoved)]
    assert len(moves) == 1
    assert desk.state.suspected is False


def test_what_was_carried_in_part_is_completed_and_never_doubled(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_bytes(b"one\ntwo\nthree\n")
    there.write_bytes(b"one\ntw")
    carry(here, there)
    carry(here, there)
    assert there.read_bytes() == here.read_bytes()


def test_settings_of_the_recording_are_those_of_the_judge(tmp_path):
    desk = Desk(tmp_path)
    desk.begin()
    began = next(iter(read_tape(desk.carried().splitlines())))
    assert began.policy == Policy()
    assert began.acts
    assert msgspec.structs.asdict(began.state)["world_size"] == 0
