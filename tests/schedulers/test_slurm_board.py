"""One query for all jobs, asked less often while nobody answers."""

from pathlib import Path

from clocks import FakeClock
from rankpatrol.core.jobs import JobState
from rankpatrol.schedulers.slurm_board import EVERY_S, LONGEST_S, JobBoard
from rankpatrol.schedulers.slurm_client import SlurmSilent
from rankpatrol.schedulers.slurm_text import read_jobs

DATA = Path(__file__).parent.parent / "data" / "schedulers" / "24_11" / "jobs.txt"


class Slurm:
    """Answers as recorded, or not at all."""

    def __init__(self):
        self.asked, self.silent = [], False

    def __call__(self, jobs):
        self.asked.append(jobs)
        if self.silent:
            raise SlurmSilent("no answer from Slurm: squeue was not done after 8 s")
        return read_jobs(DATA.read_text())


def board(*jobs):
    slurm, clock = Slurm(), FakeClock()
    made = JobBoard(slurm, clock)
    for job in jobs:
        made.follow(job)
    return made, slurm, clock


def test_many_jobs_cost_one_query_and_no_more_until_it_is_due():
    made, slurm, clock = board("1", "3_1", "8", "777")
    assert made.refresh()
    assert not made.refresh()
    assert slurm.asked == [("1", "3_1", "8", "777")]
    assert made.status("1").state is JobState.ENDING
    assert made.status("3_1") == made.status("8")  # a task of an array by either of its numbers
    assert "does not know this job" in made.status("777").reason
    clock.advance(EVERY_S)
    assert made.refresh()


def test_while_slurm_is_silent_it_is_asked_less_and_less_and_nothing_is_known():
    made, slurm, clock = board("3_1")
    made.refresh()
    slurm.silent = True
    waits, before = [], clock.mono_s()
    while len(waits) < 7:
        clock.advance(1.0)
        made.refresh()
        if len(slurm.asked) > 1 + len(waits):
            waits.append(clock.mono_s() - before)
            before = clock.mono_s()
    assert waits == [EVERY_S, 30.0, 60.0, 120.0, LONGEST_S, LONGEST_S, LONGEST_S]
    assert made.status("3_1").state is JobState.UNKNOWN
    assert "no answer" in made.status("3_1").reason
    slurm.silent = False
    clock.advance(LONGEST_S)
    assert made.refresh()
    assert made.status("3_1").state is JobState.RUNNING
    clock.advance(EVERY_S)
    assert made.refresh()


def test_what_nobody_follows_is_not_asked_for():
    made, slurm, _ = board()
    assert not made.refresh()
    assert slurm.asked == []
    made.follow("8")
    made.forget("8")
    assert not made.refresh()
    assert made.status("8").reason == "nobody follows this job"
