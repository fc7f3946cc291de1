"""How a job is ended, or queued again, by its scheduler: which steps in which order. Pure.

From inside a job a requeue with a hold would end its own caller, and nobody would be left to release it.
"""

from rankpatrol.act.job_steps import AvoidNodes, ConfirmCheckpoint, ConfirmJob, JobStep, ReleaseJob, RequeueJob, TerminateJob
from rankpatrol.act.plan import ActionPlan
from rankpatrol.core.jobs import JobStatus
from rankpatrol.core.records import Record


class RequeuePolicy(Record, frozen=True, kw_only=True):
    """What a requeue has to mind.

    `avoid`: suspect nodes (all by `drain`, else excluded from this job alone). `inside`: the caller is itself a part of the job.
    `can_hold`: the scheduler knows held jobs.
    """

    avoid: tuple[str, ...] = ()
    drain: bool = False
    checkpoints: str | None = None
    inside: bool = False
    can_hold: bool = True


def end_plan(seen: JobStatus, *, job: str, incident: int = 1) -> ActionPlan:
    """End the job for good. `job`: as the sealed evidence names it."""
    return _plan(seen, job, incident, (ConfirmJob(seen), TerminateJob(seen)))


def requeue_plan(seen: JobStatus, policy: RequeuePolicy, *, job: str, incident: int = 1) -> ActionPlan:
    """Queue the job again, without the suspect nodes, from a checkpoint that was read."""
    hold = policy.can_hold and not policy.inside
    checked = (ConfirmCheckpoint(job=seen.job, directory=policy.checkpoints, held=hold),) if policy.checkpoints else ()
    avoided = (AvoidNodes(job=seen.job, nodes=policy.avoid, drain=policy.drain),) if policy.avoid else ()
    steps: tuple[JobStep, ...]
    if hold:
        # Only what has ended writes no more: the checkpoint is read when the job is off its nodes.
        steps = (ConfirmJob(seen), RequeueJob(seen=seen, held=True), *avoided, *checked, ReleaseJob(seen.job))
    elif policy.drain:
        steps = (*checked, ConfirmJob(seen), *avoided, RequeueJob(seen=seen, held=False))
    else:
        # Slurm takes no exclusions for a running job, but does so while it ends: in the same breath, since the caller may end as well.
        steps = (*checked, ConfirmJob(seen), RequeueJob(seen=seen, held=False, without=policy.avoid))
    return _plan(seen, job, incident, steps)


def _plan(seen: JobStatus, job: str, incident: int, steps: tuple[JobStep, ...]) -> ActionPlan:
    return ActionPlan(job=job, attempt=seen.restarts or 0, incident=incident, steps=steps)
