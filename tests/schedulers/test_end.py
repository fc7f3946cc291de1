"""`rankpatrol end`: evidence, then the scheduler; on this machine and on a real Slurm cluster."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sites import LocalSite, Site, SlurmSite, wait_for

from rankpatrol.cli.main import call
from rankpatrol.core.jobs import JobState
from rankpatrol.core.records import Missing
from rankpatrol.evidence.bundle import verify
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.lease import take_lease

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RANKPATROL_LEASES", str(tmp_path / "leases"))
    return folder


def named(site: Site, job: str) -> str:
    """As a user would name it from another folder."""
    return str(site.scheduler.folder(job)) if isinstance(site, LocalSite) else job


def ranks_are_up(site: Site, job: str) -> bool:
    found = site.scheduler.processes(job)
    names = [Path(f"/proc/{each.process.pid}/comm").read_text() for each in found] if isinstance(found, tuple) else []
    return sum(name.startswith("python") for name in names) >= site.pythons


def started(site: Site) -> str:
    job = site.start()
    wait_for(lambda: ranks_are_up(site, job), 20)
    return named(site, job)


def test_a_job_that_is_only_watched_is_never_ended(tmp_path, capsys):
    with LocalSite(tmp_path) as site:
        job = started(site)
        path = Path(job) / "job.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "attached": True}))  # as `rankpatrol watch` writes it
        assert call(["end", "--job", job, "--yes"]) == 65
        assert "only watched: rankpatrol did not start it" in capsys.readouterr().err
        assert site.scheduler.describe(job).state is JobState.RUNNING


def test_without_yes_the_plan_is_said_and_nothing_is_touched(site: Site, here, capsys):
    job = started(site)
    before = site.scheduler.describe(job).life
    assert call(["end", "--job", job]) == 0
    told = capsys.readouterr().out
    assert "terminate_job" in told
    assert "nothing was touched: add --yes" in told
    assert site.scheduler.describe(job).life == before
    assert site.scheduler.describe(job).state is JobState.RUNNING
    assert list(here.iterdir()) == []


def test_the_evidence_is_sealed_and_then_the_job_is_ended(site: Site, here, capsys):
    job = started(site)
    assert call(["end", "--job", job, "--yes", "--json", "--out", "out"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["done"] is True
    assert [(step["what"], step["done"]) for step in told["steps"]] == [("confirm_job", True), ("terminate_job", True)]
    assert told["now"]["state"] == "ended"
    checked = verify(here / "out" / "incidents" / "1")
    assert checked.ok
    assert [rank.rank for rank in checked.manifest.ranks] == [0, 1]
    assert [rank.missing["proc"] for rank in checked.manifest.ranks if "proc" not in rank.captured] == []
    asked = json.loads((here / "out" / "incidents" / "1" / "scheduler.json").read_text())
    assert (asked["scheduler"], asked["status"]["state"]) == (site.scheduler.name, "running")


def test_a_requeued_job_runs_again(site: Site, capsys):
    job = started(site)
    before = site.scheduler.describe(job)
    assert call(["end", "--job", job, "--requeue", "--yes"]) == 0
    told = capsys.readouterr().out
    assert "NOT DONE" not in told
    wait_for(lambda: site.scheduler.describe(job).state is JobState.RUNNING, 60)
    assert site.scheduler.describe(job).restarts == 1 or not site.counts_restarts
    assert site.scheduler.describe(job).life != before.life


def test_where_no_checkpoint_is_good_the_job_does_not_start_from_a_broken_one(site: Site, here, capsys):
    (here / "ckpt").mkdir()
    (here / "ckpt" / "step_10.pt").write_bytes(b"PK\x03\x04 not whole")
    job = started(site)
    assert call(["end", "--job", job, "--requeue", "--yes", "--checkpoints", "ckpt"]) == 2
    told = capsys.readouterr().out
    assert "confirm_checkpoint" in told
    assert "no good checkpoint" in told
    assert site.release in told
    now = site.scheduler.describe(job)
    # With a scheduler that can hold jobs it waits for a person; else it was not touched.
    assert now.held if site.release else now.restarts == 0
    assert now.state is (JobState.PENDING if site.release else JobState.RUNNING)


def test_ctrl_c_says_what_has_become_of_the_job(slurm, here):
    job = slurm.submit("trap '' TERM; sleep 600", "-N1", "--requeue")
    words = [sys.executable, "-m", "rankpatrol", "end", "--job", job, "--requeue", "--yes"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as end:
        # It has been told to hold the job, and waits until it is off its nodes.
        wait_for(lambda: "job requeued in held state" in slurm.slurm("squeue", "-h", "-j", job, "-o", "%r"), 30)
        end.send_signal(signal.SIGINT)
        _, told = end.communicate(timeout=20)
    assert end.returncode == 130
    assert "interrupted after 1 of 3 steps" in told
    slurm.slurm("scancel", job)


def test_one_who_acts_already_is_not_interfered_with(site: Site, here, capsys):
    job = started(site)
    name = f"slurm-{job}" if isinstance(site, SlurmSite) else job.replace(":", ".").replace("/", ".")
    folder = site.scheduler.run_dir(job).path / "lease" if isinstance(site, LocalSite) else here.parent / "leases" / name
    lease = take_lease(folder, "an agent", SystemClock(), lasts_s=60)
    assert call(["end", "--job", job, "--yes", "--out", "out"]) == 3
    assert "an agent on" in capsys.readouterr().err
    assert not (here / "out" / "incidents").exists()
    assert site.scheduler.describe(job).state is JobState.RUNNING
    lease.give_back()


def test_a_job_that_is_over_is_refused(site: Site, capsys):
    job = named(site, site.finished())
    assert call(["end", "--job", job, "--yes"]) == 65
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["end"], 64, "--job"),
        (["end", "--job", "no-such-job", "--yes"], 65, "there is no job 'no-such-job' here"),
        (["end", "--job", "--all", "--yes"], 65, "there is no job"),
        (["end", "--job", "1; id", "--yes"], 65, "there is no job"),
        (["end", "--job", "x", "--drain"], 64, "these options are for --requeue"),
    ],
)
def test_wrong_words_say_what_to_do(capsys, words, code, said):
    assert call(words) == code
    assert said in capsys.readouterr().err


def test_on_slurm_unknown_ids_and_a_frozen_controller_are_unknown(slurm, capsys):
    assert call(["end", "--job", "99999", "--yes"]) == 3
    assert "Slurm does not know this job" in capsys.readouterr().err
    with slurm.frozen("slurmctld"):
        assert call(["end", "--job", "1", "--yes"]) == 3
    assert "no answer from Slurm" in capsys.readouterr().err


def test_ranks_that_are_not_seen_from_here_are_in_the_bundle_with_the_reason(slurm, here, capsys):
    """A job whose processes are no ranks of a known launcher, as from a login node."""
    job = slurm.submit("srun -n4 sleep 600", "-N2", "-n4")
    assert call(["end", "--job", job, "--yes", "--json", "--out", "out"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["diagnosis"]["verdict"] == "undetermined"
    ranks = verify(Path(told["bundle"])).manifest.ranks
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]
    assert all("not seen from this node" in rank.missing["proc"] for rank in ranks)


def test_a_shell_that_wears_another_jobs_variables_is_no_rank_of_it(slurm, here, capsys):
    """What is submitted from within a job inherits its variables."""
    job = slurm.submit("srun -n1 sleep 600", "-N1")
    jobs = SlurmJobs(SlurmClient(), SystemClock())
    wait_for(lambda: not isinstance(jobs.processes(job), Missing), 20)
    words = "import time; print('ready', flush=True); time.sleep(60)"
    environment = {**os.environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": "0", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with subprocess.Popen([sys.executable, "-c", words], env=environment, stdout=subprocess.PIPE) as stranger:
        try:
            stranger.stdout.readline()
            assert call(["end", "--job", job, "--json"]) == 0
            assert "no rank is seen on this node" in json.loads(capsys.readouterr().out)["diagnosis"]["sentence"]
        finally:
            stranger.kill()
    slurm.slurm("scancel", job)
