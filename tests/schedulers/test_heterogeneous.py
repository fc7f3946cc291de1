"""Heterogeneous jobs on a real Slurm: told apart, and left to a person."""

import pytest
from sites import wait_for
from slurm_cluster import Cluster

from rankpatrol.core.jobs import JobState
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient
from rankpatrol.system.clock import SystemClock

pytestmark = pytest.mark.timeout(120)


def test_its_components_are_told_apart_and_nothing_is_done_to_one_of_them(slurm: Cluster):
    (slurm.base / "het.sh").write_text("#!/bin/bash\nsleep 300\n")
    part = ["-N1", "-n1", "-o", str(slurm.base / "log" / "het-%j.out")]
    job = slurm.slurm("sbatch", "--parsable", "--requeue", *part, ":", *part, str(slurm.base / "het.sh")).split(";")[0]
    jobs = SlurmJobs(SlurmClient(), SystemClock())
    try:
        wait_for(lambda: jobs.describe(f"{job}+1").state is JobState.RUNNING, 40)
        both = [jobs.describe(f"{job}+{number}") for number in (0, 1)]
        assert [(each.job, each.state) for each in both] == [(f"{job}+{number}", JobState.RUNNING) for number in (0, 1)]
        assert both[0].nodes != both[1].nodes
        assert "heterogeneous job of 2 components" in jobs.describe(job).reason
        assert f"`scancel {job}`" in jobs.terminate(both[1])
        assert f"`scontrol requeue {job}`" in jobs.requeue(both[0], held=False)
        assert [jobs.describe(each.job).restarts for each in both] == [0, 0]
    finally:
        slurm.slurm("scancel", job)
