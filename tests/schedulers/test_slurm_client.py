"""What comes of Slurm's commands where they fail, stall or say something odd: told by stand-ins that print what real ones printed."""

import os
from pathlib import Path

import pytest

from clocks import FakeClock
from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.slurm import SlurmJobs, SlurmWaits
from rankpatrol.schedulers.slurm_client import SlurmClient, SlurmSilent
from rankpatrol.schedulers.slurm_pids import listed, step_of

DATA = Path(__file__).parent.parent / "data" / "schedulers" / "24_11"


@pytest.fixture
def says(tmp_path, monkeypatch):
    """A function that puts a stand-in for one of Slurm's commands first on PATH; it writes down what it was asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(name, script):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\n{script}\n')
        path.chmod(0o755)

    make.asked = lambda: (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    return make


def jobs():
    return SlurmJobs(SlurmClient(call_s=2.0), FakeClock(), SlurmWaits(gone_s=2, taken_s=2))


def test_one_query_serves_many_jobs(says):
    says("squeue", f"cat {DATA}/jobs.txt")
    found = SlurmClient().jobs(["1", "2", "3_1"])
    assert len(found) == 8
    assert len(says.asked()) == 1
    assert "-j 1,2,3_1 -O JobID:|," in says.asked()[0]


def test_a_users_own_defaults_do_not_hide_jobs(says, monkeypatch):
    monkeypatch.setenv("SQUEUE_STATES", "PD")
    says("squeue", 'test -z "$SQUEUE_STATES" || exit 0\n' + f"cat {DATA}/jobs.txt")
    assert SlurmClient().jobs(["1"])


def test_a_query_for_a_job_that_never_was_finds_none(says):
    says("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert SlurmClient().jobs(["99999"]) == ()
    assert "Slurm does not know this job" in jobs().describe("99999").reason


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "Unable to contact"),
        ("exec sleep 30", "was not done after 0.3 s"),
        ("exit 7", "squeue:"),
    ],
)
def test_no_answer_is_not_an_answer(says, script, why):
    says("squeue", script)
    with pytest.raises(SlurmSilent, match=why):
        SlurmClient(call_s=0.3 if "sleep" in script else 5.0).jobs(["1"])


def test_where_slurm_is_not_installed_nothing_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    seen = jobs().describe("1")
    assert seen.state is JobState.UNKNOWN
    assert "cannot start squeue" in seen.reason


@pytest.mark.parametrize("job", ["1; id", "--all", "", "1,2"])
def test_words_that_are_no_id_reach_no_command(says, job):
    says("squeue", "true")
    says("scontrol", "true")
    assert jobs().describe(job).state is JobState.UNKNOWN
    with pytest.raises(BadInput):
        SlurmClient().jobs([job])
    assert says.asked() == []


def test_a_node_of_a_hostile_name_reaches_no_command(says):
    says("scontrol", "true")
    with pytest.raises(BadInput):
        jobs().avoid("1", ("n1 State=DOWN",), "drain")
    assert says.asked() == []


ROW = "8|8|{state}|None|{restarts}|1|1|n1|1795975925|1795977734|30:00|4|1795975924|"
SEEN = JobStatus(job="8", state=JobState.RUNNING, restarts=0, started_unix_s=1795975925.0, is_batch=True, may_requeue=True)


def answers(says, tmp_path, *rows):
    """A squeue that says one row after another, the last one for ever."""
    (tmp_path / "rows").write_text("".join(row + "\n" for row in rows))
    says("squeue", f'head -1 {tmp_path}/rows; test "$(wc -l < {tmp_path}/rows)" = 1 || sed -i 1d {tmp_path}/rows')


def test_a_requeue_that_slurm_takes_and_forgets_is_not_called_done(says, tmp_path):
    answers(says, tmp_path, ROW.format(state="RUNNING", restarts=0))
    says("scontrol", "exit 0")
    assert jobs().requeue(SEEN, held=False) == "not done after 2 s: the job is RUNNING"


def test_a_requeue_whose_answer_was_lost_is_read_back(says, tmp_path):
    """The controller took the order, and its answer did not come in time."""
    answers(says, tmp_path, ROW.format(state="RUNNING", restarts=0), ROW.format(state="COMPLETING", restarts=1))
    says("scontrol", "echo 'slurm_requeue error: Socket timed out on send/recv operation' >&2; exit 1")
    assert jobs().requeue(SEEN, held=False) == ""


def test_a_job_that_was_requeued_meanwhile_is_not_ended(says, tmp_path):
    answers(says, tmp_path, ROW.format(state="RUNNING", restarts=1))
    says("scancel", "exit 0")
    assert "started again since (restart 1, not 0)" in jobs().terminate(SEEN)
    assert not any(line.startswith("scancel") for line in says.asked())


def test_a_job_in_a_state_that_is_not_known_is_not_touched(says, tmp_path):
    answers(says, tmp_path, ROW.format(state="NEW_WORD", restarts=0))
    says("scancel", "exit 0")
    assert "NEW_WORD, which is not known here" in jobs().terminate(SEEN)
    assert not any(line.startswith("scancel") for line in says.asked())


def test_exclusions_that_cannot_be_read_are_not_written_over(says):
    says("squeue", "exit 1")
    says("scontrol", "exit 0")
    assert "cannot be read" in jobs().avoid("8", ("n1",), "exclude")
    assert not any(line.startswith("scontrol") for line in says.asked())


@pytest.mark.parametrize(
    ("cgroups", "step"),
    [
        ("4:freezer:/slurm_n2/uid_0/job_17/step_0\n1:name=systemd:/\n", ("17", "0")),
        ("4:freezer:/slurm/uid_1000/job_17/step_batch/task_0\n", ("17", "batch")),
        ("0::/system.slice/slurmstepd.scope/job_17/step_3/user/task_2\n", ("17", "3")),
        ("0::/system.slice/n2_slurmstepd.scope/job_17/step_extern/user\n", ("17", "extern")),
        ("0::/user.slice/user-1000.slice/system.slice/slurmstepd.scope/job_17/step_3\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_a_cgroup_tells_job_and_step(cgroups, step):
    assert step_of(cgroups) == step


def test_listpids_gives_a_rank_to_tasks_alone():
    text = (
        "PID      JOBID    STEPID   LOCALID GLOBALID\n16908    1        0        0       2       \n16862    1        batch    -       -\n"
    )
    assert list(listed(text)) == [(16908, "1", "0", 2), (16862, "1", "batch", None)]
    assert list(listed("There are no steps for job 4 on node (null).\n")) == []


def test_where_nobody_knows_a_process_that_is_said(says):
    says("scontrol", "echo 'There are no steps for job 4294967 on node (null).'")
    found = jobs().processes("4294967")
    assert isinstance(found, Missing)
    assert "no process of the job is seen on this node" in found.reason


def test_how_earlier_runs_ended_is_told_by_the_accounting(says):
    says("sacct", "printf '8|REQUEUED|0:15|1795975925|1795975934|n[1-2]\\n8|RUNNING|0:0|1795975950|Unknown|n3\\n'")
    (run,) = jobs().earlier("8")
    assert (run.said, run.exit_status, run.nodes) == ("REQUEUED", -15, ("n1", "n2"))
    assert says.asked() == ["sacct -n -P -X --duplicates -j 8 -o JobID,State,ExitCode,Start,End,NodeList"]


def test_a_site_without_accounting_has_no_earlier_runs_and_says_why(says):
    says("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert jobs().earlier("8") == Missing("sacct: Slurm accounting storage is disabled")
