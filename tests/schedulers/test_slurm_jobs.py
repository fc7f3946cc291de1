"""Deeds on a real Slurm cluster: each is read back, and what Slurm would do to the wrong job is refused."""

import subprocess
import time

import pytest
from sites import SlurmSite, wait_for
from slurm_cluster import Cluster

from rankpatrol.core.jobs import JobState
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.slurm import SlurmJobs, SlurmWaits
from rankpatrol.schedulers.slurm_client import SlurmClient
from rankpatrol.system.clock import SystemClock

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def site(slurm: Cluster):
    with SlurmSite(slurm) as made:
        yield made


def impatient() -> SlurmJobs:
    return SlurmJobs(SlurmClient(call_s=1.0), SystemClock(), SlurmWaits(gone_s=2.0, taken_s=2.0, poll_s=0.2))


def test_hold_exclude_release_starts_elsewhere(site: SlurmSite):
    seen = site.scheduler.describe(site.start())
    (node,) = seen.nodes
    assert site.scheduler.requeue(seen, held=True) == ""
    held = site.scheduler.describe(seen.job)
    assert (held.state, held.held, held.restarts) == (JobState.PENDING, True, 1)
    assert isinstance(site.scheduler.processes(seen.job), Missing)
    assert site.scheduler.avoid(seen.job, (node,), "exclude") == ""
    assert site.scheduler.release(seen.job) == ""
    site.cluster.await_state(seen.job, "RUNNING")
    now = site.scheduler.describe(seen.job)
    assert node not in now.nodes
    assert now.avoided == (node,)
    assert site.scheduler.release(seen.job).startswith("it is not held")


def test_exclusions_of_the_user_stay(site: SlurmSite):
    users = site.cluster.node(4)
    seen = site.scheduler.describe(site.cluster.submit("srun sleep 600", "-N1", "--requeue", f"--exclude={users}"))
    assert site.scheduler.requeue(seen, held=True) == ""
    assert site.scheduler.avoid(seen.job, seen.nodes, "exclude") == ""
    assert set(site.scheduler.describe(seen.job).avoided) == {users, *seen.nodes}
    site.cluster.slurm("scancel", seen.job)


def test_nodes_of_a_running_job_cannot_be_excluded_and_that_is_said(site: SlurmSite):
    seen = site.scheduler.describe(site.start())
    assert "no longer pending" in site.scheduler.avoid(seen.job, seen.nodes, "exclude")


def test_a_drained_node_is_read_back(site: SlurmSite):
    seen = site.scheduler.describe(site.start())
    try:
        assert site.scheduler.avoid(seen.job, seen.nodes, "drain") == ""
        assert site.cluster.slurm("sinfo", "-h", "-N", "-n", seen.nodes[0], "-o", "%T").startswith("drain")
        assert f"rankpatrol: suspect in job {seen.job}" in site.cluster.slurm("sinfo", "-R", "-h", "-o", "%E")
        assert site.scheduler.avoid(seen.job, ("nosuchnode",), "drain") != ""
    finally:
        site.cluster.slurm("scontrol", "update", f"NodeName={seen.nodes[0]}", "State=RESUME")


def test_a_job_of_srun_is_explained_and_left_alone(site: SlurmSite):
    words = ["srun", "-N1", "-J", "srun-only", "sleep", "600"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as srun:
        try:
            wait_for(lambda: site.cluster.slurm("squeue", "-h", "-n", "srun-only", "-t", "R", "-o", "%i"), 20)
            seen = site.scheduler.describe(site.cluster.slurm("squeue", "-h", "-n", "srun-only", "-o", "%i"))
            assert seen.is_batch is False
            assert "submit it with sbatch" in site.scheduler.requeue(seen, held=False)
            assert site.scheduler.describe(seen.job).life == seen.life
        finally:
            srun.terminate()


def test_a_job_that_is_not_to_be_requeued_is_explained_and_left_alone(site: SlurmSite):
    seen = site.scheduler.describe(site.cluster.submit("srun sleep 600", "-N1", "--no-requeue"))
    assert seen.may_requeue is False
    assert f"scontrol update JobId={seen.job} Requeue=1" in site.scheduler.requeue(seen, held=True)
    assert site.scheduler.describe(seen.job).life == seen.life
    site.cluster.slurm("scancel", seen.job)


def test_a_task_of_an_array_is_ended_and_its_brothers_go_on(site: SlurmSite):
    array = site.cluster.queue("srun sleep 600", "-N1", "--array=1-2")
    wait_for(lambda: site.cluster.slurm("squeue", "-h", "-j", array, "-t", "R", "-o", "%T").split() == ["RUNNING"] * 2, 20)
    whole = site.scheduler.describe(array)
    assert whole.state is JobState.UNKNOWN
    assert "is an array of 2 jobs" in whole.reason
    # The last task wears the number of the whole array: whoever cancels that number ends them all.
    last = site.scheduler.describe(f"{array}_2")
    assert (last.job, last.local_id) == (f"{array}_2", array)
    wait_for(lambda: not isinstance(site.scheduler.processes(last.local_id), Missing), 20)
    assert site.scheduler.terminate(last) == ""
    assert site.scheduler.describe(f"{array}_1").state is JobState.RUNNING
    site.cluster.slurm("scancel", array)


def test_a_frozen_controller_means_unknown_and_nothing_is_done(site: SlurmSite):
    seen = site.scheduler.describe(site.start())
    quick = impatient()
    began = time.monotonic()
    with site.cluster.frozen("slurmctld"):
        unknown = quick.describe(seen.job)
        assert unknown.state is JobState.UNKNOWN
        assert "was not done after 1 s" in unknown.reason
        assert quick.terminate(seen).startswith("nothing was done")
        assert quick.requeue(seen, held=True).startswith("nothing was done")
        assert time.monotonic() - began < 15
        # Its processes are known all the same: their cgroups say whose they are.
        assert not isinstance(quick.processes(seen.job), Missing)
    wait_for(lambda: site.scheduler.describe(seen.job).state is not JobState.UNKNOWN, 20)
    assert site.scheduler.describe(seen.job).life == seen.life


def test_a_job_whose_processes_ignore_sigterm_is_waited_for(site: SlurmSite):
    job = site.cluster.submit("trap '' TERM\nsrun bash -c 'trap \"\" TERM; echo ready; sleep 600 & wait; sleep 600'", "-N1", "--requeue")
    wait_for(lambda: "ready" in site.cluster.output(job), 20)
    assert "not done after 2 s: the job is COMPLETING" in impatient().requeue(site.scheduler.describe(job), held=True)
    wait_for(lambda: site.scheduler.describe(job).held, 30)
    assert site.scheduler.release(job) == ""
    site.cluster.slurm("scancel", job)
