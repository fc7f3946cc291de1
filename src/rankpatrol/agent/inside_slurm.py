"""What the patrol of a job can do as a part of a Slurm job: have it queued again without the suspect node, from within."""

import os
import socket
from pathlib import Path

from rankpatrol.act.escalation import why_no_requeue
from rankpatrol.act.job_hands import JobHands
from rankpatrol.act.job_plan import RequeuePolicy, requeue_plan
from rankpatrol.act.plan import ActionPlan, Verified
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.leases import slurm_lease
from rankpatrol.agent.watching import Wanted, look_around
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.incident.records import IncidentState
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.schedulers.slurm import SlurmJobs
from rankpatrol.schedulers.slurm_client import SlurmClient, installed
from rankpatrol.schedulers.slurm_pids import is_inside
from rankpatrol.system.clock import Clock
from rankpatrol.system.lease import Lease

# Ranks and the batch script have KillWait (30 s as shipped) after SIGTERM, and then we go with them.
_CHECK_S = 15.0


class InsideSlurm:
    """The Slurm job that we are a part of."""

    def __init__(self, job: str, local_id: str, clock: Clock) -> None:
        self.job, self._local_id = job, local_id
        self._scheduler = SlurmJobs(SlurmClient(), clock)

    @classmethod
    def here(cls, clock: Clock) -> "InsideSlurm | None":
        """None where we are in none, or where its commands are not."""
        local_id = os.environ.get("SLURM_JOB_ID", "")
        if not local_id or not installed() or not is_inside(local_id):
            return None
        array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
        return cls(f"{array}_{task}" if array and task else local_id, local_id, clock)

    @property
    def lease_folder(self) -> Path:
        return slurm_lease(self.job)

    def describe(self) -> JobStatus:
        """For the bundle, and before a plan."""
        return self._scheduler.describe(self.job)

    def plan(self, state: IncidentState, failed_of: str | None, run_dir: RunDir, spec: JobSpec) -> ActionPlan | str:
        """How it is queued again without this node, or why it is not."""
        seen = self.describe()
        if seen.state is not JobState.RUNNING:
            return seen.reason or f"Slurm says {seen.said}"
        if why := why_no_requeue(state.diagnosis, failed_of, seen):
            return why
        found, _ = look_around(Wanted(job=self._local_id))
        if others := [each.name for each in found if each.patrolled_by != str(run_dir.path)]:
            return f"{len(others)} more trainings run in it, and would be ended too"
        node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        policy = RequeuePolicy(avoid=(node,), checkpoints=spec.checkpoints, inside=True)
        # Attempts are counted here by our own shims, and the evidence is of one of them.
        wanted = requeue_plan(seen, policy, job=spec.job, incident=state.incident)
        return ActionPlan(job=spec.job, attempt=state.attempt, incident=state.incident, steps=wanted.steps)

    def hands(self, lease: Lease, checkpoints: CheckpointWatch) -> JobHands:
        """For `execute`."""

        def newest_good(directory: str) -> Verified | Missing:
            selection = checkpoints.now(_CHECK_S)
            found = selection if isinstance(selection, Missing) else verified(selection)
            return Missing(f"no good checkpoint in {directory}") if found is None else found

        return JobHands(scheduler=self._scheduler, checkpoint=newest_good, why_not=lease.why_not)
