"""`watch --job` of a job that runs on other nodes goes there as a step of the job."""

import pytest

from rankpatrol.cli.elsewhere import go_to_job, step_of
from rankpatrol.cli.main import call
from rankpatrol.core.jobs import JobState, JobStatus


def test_one_of_us_is_started_on_each_node_and_takes_nothing_for_itself():
    seen = JobStatus(job="10_2", local_id="10", state=JobState.RUNNING, nodes=("n1", "n2"))
    words = step_of(seen, ["watch", "--job", "10", "--once"])
    assert words[:5] == ["srun", "--jobid=10", "--nodes=2", "--ntasks-per-node=1", "--ntasks=2"]
    assert {"--overlap", "--label"} <= set(words)
    assert words[-5:] == ["rankpatrol", "watch", "--job", "10", "--once"]
    assert "--label" not in step_of(seen, ["watch", "--json"])


@pytest.mark.parametrize("job", ["no-such-job", "--all", "1; id"])
def test_what_is_no_job_of_slurms_is_not_asked_for(job):
    go_to_job(job, lambda local_id: pytest.fail(f"asked for {local_id}"))


def test_who_was_sent_there_does_not_hop_on(monkeypatch):
    monkeypatch.setenv("RANKPATROL_ELSEWHERE", "1")
    go_to_job("1", lambda local_id: pytest.fail(f"asked for {local_id}"))


def test_a_job_that_waits_says_what_for(slurm, capsys):
    job = slurm.queue("sleep 1", "-N1", "--hold")
    assert call(["watch", "--job", job, "--once"]) == 65
    assert "it is held until somebody releases it" in capsys.readouterr().err
    slurm.slurm("scancel", job)


def test_a_job_that_never_was_is_said(slurm, capsys):
    assert call(["watch", "--job", "99999", "--once"]) == 65
    assert "Slurm does not know this job" in capsys.readouterr().err
