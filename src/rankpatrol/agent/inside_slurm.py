"""What the patrol of a job can do as a part of a Slurm job: have it queued again without the suspect node, from within."""

import os
from collections.abc import Callable
from pathlib import Path

from rankpatrol.act.escalation import Stopped, why_no_requeue
from rankpatrol.act.job_hands import JobHands
from rankpatrol.act.job_plan import RequeuePolicy, requeue_plan
from rankpatrol.act.plan import ActionPlan, Verified
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.leases import slurm_lease
from rankpatrol.agent.roster import Attempt
from rankpatrol.agent.watching import Wanted, look_around
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.incident.records import IncidentState
from rankpatrol.launch.nodes import which_restart
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

    def __init__(self, job: str, local_id: str, spec: JobSpec, run_dir: RunDir, clock: Clock) -> None:
        self.job, self._local_id, self._spec, self._run_dir = job, local_id, spec, run_dir
        self._scheduler = SlurmJobs(SlurmClient(), clock)

    @classmethod
    def here(cls, spec: JobSpec, run_dir: RunDir, clock: Clock) -> "InsideSlurm | None":
        """None where we are in none, or where its commands are not."""
        local_id = os.environ.get("SLURM_JOB_ID", "")
        if not local_id or not installed() or not is_inside(local_id):
            return None
        return cls(_called(local_id), local_id, spec, run_dir, clock)

    @property
    def lease_folder(self) -> Path:
        return slurm_lease(self.job)

    def describe(self) -> JobStatus:
        """For the bundle, and before a plan."""
        return self._scheduler.describe(self.job)

    def facts(self) -> dict[str, Callable[[], object]]:
        """What Slurm can be asked for the bundle: this run of the job, and how the earlier ones ended."""
        asked: dict[str, Callable[[], object]] = {"slurm": self.describe}
        return asked if not which_restart(os.environ) else {**asked, "earlier_runs": lambda: self._scheduler.earlier(self.job)}

    def plan(self, state: IncidentState, attempt: Attempt, failed_of: str | None) -> ActionPlan | str:
        """How it is queued again without the culprits' nodes, or why it is not. `failed_of`: the cause each time."""
        seen = self.describe()
        if seen.state is not JobState.RUNNING:
            return seen.reason or f"Slurm says {seen.said}"
        stopped = _stopped(state, attempt, seen, failed_of)
        if why := why_no_requeue(stopped):
            return why
        found, _ = look_around(Wanted(job=self._local_id))
        if others := [each.name for each in found if each.patrolled_by != str(self._run_dir.path)]:
            return f"{len(others)} more trainings run in it, and would be ended too"
        policy = RequeuePolicy(avoid=stopped.suspects, checkpoints=self._spec.checkpoints, inside=True)
        # Attempts are counted here by our own shims, and the evidence is of one of them.
        wanted = requeue_plan(seen, policy, job=self._spec.job, incident=state.incident)
        return ActionPlan(job=self._spec.job, attempt=state.attempt, incident=state.incident, steps=wanted.steps)

    def hands(self, lease: Lease, checkpoints: CheckpointWatch) -> JobHands:
        """For `execute`."""

        def newest_good(directory: str) -> Verified | Missing:
            selection = checkpoints.now(_CHECK_S)
            found = selection if isinstance(selection, Missing) else verified(selection)
            return Missing(f"no good checkpoint in {directory}") if found is None else found

        return JobHands(scheduler=self._scheduler, checkpoint=newest_good, why_not=lease.why_not)


def _called(local_id: str) -> str:
    """Our job by the name under which Slurm knows it alone: of an array 8123_4, of a heterogeneous job's first component 8123+0."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return f"{local_id}+0" if _components() > 1 else local_id


def _components() -> int:
    told = os.environ.get("SLURM_HET_SIZE", "")
    return int(told) if told.isdecimal() else 1


def _stopped(state: IncidentState, attempt: Attempt, seen: JobStatus, failed_of: str | None) -> Stopped:
    """A job of one node is on that node, whatever its ranks call it (a container may hide Slurm's name)."""
    culprits = state.diagnosis.culprit_ranks or ()
    nodes = {place.rank: seen.nodes[0] if len(seen.nodes) == 1 else place.node for place in attempt.places}
    return Stopped(
        diagnosis=state.diagnosis,
        job=seen,
        seen=tuple(dict.fromkeys(nodes.values())),
        suspects=tuple(dict.fromkeys(nodes[rank] for rank in culprits if rank in nodes)),
        failed_of=failed_of,
        components=_components(),
    )
