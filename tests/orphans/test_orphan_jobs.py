"""Who may say that a job has ended: Slurm by its commands, Slurm's Epilog, and the shims' own records."""

import os
import time
from pathlib import Path

import pytest
from orphan_scenes import process as made_process

from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.launch.rundir import JobSpec, LauncherExit, RankExit, RankPlace, RunDir
from rankpatrol.orphans.jobs import STATES, AllJobs, EpilogJobs, RunJobs, SlurmJobs
from rankpatrol.orphans.records import Environment, JobState, JobWord
from rankpatrol.orphans.run_records import place_of
from rankpatrol.system.process import boot_id, identify


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, for stand-ins of squeue and sacct."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def answers(folder: Path, name: str, stdout: str = "", stderr: str = "", code: int = 0) -> None:
    (folder / f"{name}.out").write_text(stdout)
    (folder / name).write_text(
        f'#!/bin/sh\necho "$SLURM_TIME_FORMAT" > {folder}/{name}.format\ncat {folder}/{name}.out\necho "{stderr}" >&2\nexit {code}\n'
    )
    (folder / name).chmod(0o755)


def test_the_controller_is_asked_first_with_times_in_seconds(slurm: Path) -> None:
    answers(slurm, "squeue", "8123|COMPLETED|1001|1795000000|1795003600\n")
    said = SlurmJobs().words(frozenset({"8123"}))["8123"]
    assert (said.state, said.uid, said.started_unix_s, said.ended_unix_s) == (JobState.ENDED, 1001, 1795000000.0, 1795003600.0)
    assert (slurm / "squeue.format").read_text() == "%s\n"


def test_a_job_that_the_controller_forgot_is_looked_up_in_the_accounting(slurm: Path) -> None:
    answers(slurm, "squeue", stderr="slurm_load_jobs error: Invalid job id specified", code=1)
    answers(slurm, "sacct", "8123|CANCELLED by 1001|1001|1795000000|1795003600\n")
    said = SlurmJobs().words(frozenset({"8123"}))["8123"]
    assert (said.state, said.by) == (JobState.ENDED, "Slurm (sacct)")


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "COMPLETING", "SUSPENDED", "REQUEUED", "CONFIGURING"])
def test_a_job_that_may_still_own_processes_lives(slurm: Path, state: str) -> None:
    answers(slurm, "squeue", f"8123|{state}|1001|1795000000|1795003600\n")
    said = SlurmJobs().words(frozenset({"8123"}))["8123"]
    assert (said.state, said.ended_unix_s) == (JobState.LIVE, None)


@pytest.mark.parametrize(
    "stdout", ["", "8124|COMPLETED|1001|1|2\n", "8123|COMPLETED|1001|1|2\n8123|RUNNING|1001|1|2\n", "garbage\n", "8123|NEW_WORD|1001|1|2\n"]
)
def test_anything_unclear_is_unknown(slurm: Path, stdout: str) -> None:
    answers(slurm, "squeue", stdout)
    answers(slurm, "sacct", stderr="accounting is off", code=1)
    said = SlurmJobs().words(frozenset({"8123"}))["8123"]
    assert said.state is JobState.UNKNOWN
    assert said.why


def test_a_slurm_that_does_not_answer_is_unknown_within_its_deadline(slurm: Path) -> None:
    for name in ("squeue", "sacct"):
        (slurm / name).write_text("#!/bin/sh\nexec sleep 30\n")
        (slurm / name).chmod(0o755)
    began = time.monotonic()
    assert SlurmJobs(deadline_s=0.1).words(frozenset({"8123"}))["8123"].state is JobState.UNKNOWN
    assert time.monotonic() - began < 5


def test_what_is_no_job_id_of_slurms_is_not_asked(slurm: Path) -> None:
    assert SlurmJobs().words(frozenset({"--help", "train, attempt 0, rank 3", "8123; reboot"})) == {}


def test_no_state_is_both_live_and_ended() -> None:
    assert set(STATES.values()) == {JobState.LIVE, JobState.ENDED}


EPILOG = {"SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_ID": "8123", "SLURM_JOB_UID": "1001", "SLURM_JOB_START_TIME": "1795000000"}


def test_slurmds_epilog_is_the_word_itself() -> None:
    said = EpilogJobs("8123", EPILOG).words(frozenset({"8123", "8124"}))
    assert list(said) == ["8123"]
    assert (said["8123"].state, said["8123"].grace_s, said["8123"].uid) == (JobState.ENDED, 0.0, 1001)


@pytest.mark.parametrize("wrong", [{"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, {"SLURM_SCRIPT_CONTEXT": ""}, {"SLURM_JOB_ID": "8124"}])
def test_whoever_is_not_the_epilog_proves_nothing(wrong: dict[str, str]) -> None:
    assert EpilogJobs("8123", {**EPILOG, **wrong}).words(frozenset({"8123"}))["8123"].state is JobState.UNKNOWN


class Says:
    def __init__(self, state: JobState) -> None:
        self._state = state

    def words(self, jobs):
        return {job: JobWord(job=job, state=self._state, by="test") for job in jobs}

    def tie_of(self, process):
        return None


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ((JobState.ENDED, JobState.LIVE), JobState.LIVE),
        ((JobState.LIVE, JobState.ENDED), JobState.LIVE),
        ((JobState.UNKNOWN, JobState.ENDED), JobState.ENDED),
        ((JobState.ENDED, JobState.UNKNOWN), JobState.ENDED),
    ],
)
def test_who_says_that_a_job_lives_is_believed(said, believed) -> None:
    assert AllJobs(map(Says, said)).words(frozenset({"1"}))["1"].state is believed


# --- the shims' own records ---------------------------------------------------------------------------------------------------------

GONE = 4_194_303


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    for room in ("ranks", "exits"):
        (tmp_path / room).mkdir()
    spec = JobSpec(job="train", job_dir="/", command=("x",), policy="recover", patience_s=1, checkpoints=None, started_unix_s=1.0)
    made.write("job.json", spec)
    return made


def place(pid: int = GONE, start_ticks: int = 1, **other) -> RankPlace:
    fields = {
        "attempt": 0,
        "rank": 3,
        "local_rank": 3,
        "world_size": 4,
        "node": os.uname().nodename,
        "shim_pid": GONE - 1,
        "shim_start_ticks": 1,
        "torchrun_restarts": 0,
        "scheduler_restarts": 0,
        "started_unix_s": time.time() - 100,
    }
    return RankPlace(pid=pid, start_ticks=start_ticks, **{**fields, **other})


def loader(run_dir: RunDir, **other):
    fields = {"session_id": GONE, "uid": os.geteuid(), "environment": Environment(run_dir=str(run_dir.path), rank=3)}
    return made_process(**{**fields, **other})


def word_of(run_dir: RunDir, **other) -> JobWord | None:
    jobs = RunJobs()
    tie = jobs.tie_of(loader(run_dir, **other))
    return None if tie is None else jobs.words(frozenset({tie.key}))[tie.key]


def test_a_rank_that_failed_is_over_by_its_shims_record_at_once(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.3.json", place())
    run_dir.write("exits/0.3.json", RankExit(exit_status=-9, by_request=False, ended_unix_s=5.0))
    said = word_of(run_dir)
    assert said is not None
    assert (said.state, said.grace_s, said.ended_unix_s) == (JobState.ENDED, 0.0, 5.0)


def test_a_rank_whose_shim_was_killed_with_it_is_over(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.3.json", place())
    said = word_of(run_dir)
    assert said is not None
    assert (said.state, said.grace_s) == (JobState.ENDED, 0.0)
    assert "shim" in said.why


@pytest.mark.parametrize("who", ["rank", "shim"])
def test_while_the_rank_or_its_shim_lives_all_of_it_is_the_jobs_own(run_dir: RunDir, who: str) -> None:
    us = identify(os.getpid())
    assert us is not None
    alive = {"pid": us.pid, "start_ticks": us.start_ticks} if who == "rank" else {"shim_pid": us.pid, "shim_start_ticks": us.start_ticks}
    run_dir.write("ranks/0.3.json", place(**alive))
    run_dir.write("exits/0.3.json", RankExit(exit_status=-9, by_request=False, ended_unix_s=5.0))
    tied = {"session_id": us.pid, "id": ProcessId(boot_id(), 4711, us.start_ticks + 1)} if who == "rank" else {}
    said = word_of(run_dir, **tied)
    assert said is not None
    assert said.state is JobState.LIVE


def test_what_a_rank_left_that_ended_well_waits_for_the_whole_job(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.3.json", place())
    run_dir.write("exits/0.3.json", RankExit(exit_status=0, by_request=False, ended_unix_s=5.0))
    us = identify(os.getpid())
    assert us is not None
    run_dir.write("launcher.json", us)
    assert word_of(run_dir).state is JobState.LIVE
    run_dir.write("launcher_exit.json", LauncherExit(exit_code=0, ended_unix_s=9.0))
    said = word_of(run_dir)
    assert (said.state, said.grace_s, said.ended_unix_s) == (JobState.ENDED, None, 9.0)


@pytest.mark.parametrize(
    "other",
    [
        {"session_id": 4242},
        {"environment": Environment(rank=3)},
        {"environment": Missing("D state")},
        {"uid": 4242},
        {"id": ProcessId("boot", 4711, 0)},
    ],
    ids=["another session", "no run directory", "environment hidden", "another user's records", "older than the rank"],
)
def test_what_the_record_does_not_tie_is_not_tied(run_dir: RunDir, other) -> None:
    run_dir.write("ranks/0.3.json", place())
    assert word_of(run_dir, **other) is None


def test_another_rank_in_the_environment_is_not_tied(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.3.json", place())
    assert word_of(run_dir, environment=Environment(run_dir=str(run_dir.path), rank=2)) is None


def test_a_session_number_that_another_process_leads_by_now_is_not_tied(run_dir: RunDir) -> None:
    us = os.getpid()
    run_dir.write("ranks/0.3.json", place(pid=us, start_ticks=1))
    assert word_of(run_dir, session_id=us) is None


def test_another_nodes_rank_is_not_tied(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.3.json", place(node="elsewhere"))
    assert word_of(run_dir) is None


def test_of_two_ranks_that_wore_the_number_the_last_before_the_process_counts() -> None:
    first, second = place(start_ticks=10), place(start_ticks=50, attempt=1)
    assert place_of(GONE, 30, 3, [first, second]) == first
    assert place_of(GONE, 60, 3, [first, second]) == second
    assert place_of(GONE, 5, 3, [first, second]) is None


def test_records_that_are_not_there_tie_nothing(tmp_path: Path) -> None:
    assert RunJobs().tie_of(made_process(uid=os.geteuid(), environment=Environment(run_dir=str(tmp_path / "gone"), rank=0))) is None


def test_records_that_never_answer_are_left_behind_and_not_asked_again(run_dir: RunDir) -> None:
    (run_dir.path / "job.json").unlink()
    os.mkfifo(run_dir.path / "job.json")
    jobs, began = RunJobs(), time.monotonic()
    assert [jobs.tie_of(loader(run_dir)) for _ in range(20)] == [None] * 20
    assert time.monotonic() - began < 5


def test_one_answer_serves_a_second(slurm: Path) -> None:
    answers(slurm, "squeue", "8123|RUNNING|1001|1795000000|Unknown\n")
    asked = SlurmJobs()
    asked.words(frozenset({"8123"}))
    answers(slurm, "squeue", "8123|COMPLETED|1001|1795000000|1795003600\n")
    assert asked.words(frozenset({"8123"}))["8123"].state is JobState.LIVE
