"""Steps of a plan that speak to a scheduler by job id. Data alone."""

from rankpatrol.core.jobs import JobStatus
from rankpatrol.core.records import Record


class ConfirmJob(Record, frozen=True, tag="confirm_job"):
    """Read the job again: still in the run that was judged, and still running."""

    seen: JobStatus


class ConfirmCheckpoint(Record, frozen=True, tag="confirm_checkpoint", kw_only=True):
    """Read the checkpoint that the next run will start from. `held`: the job waits for it meanwhile."""

    job: str
    directory: str
    held: bool


class TerminateJob(Record, frozen=True, tag="terminate_job"):
    """End the job for good."""

    seen: JobStatus


class RequeueJob(Record, frozen=True, tag="requeue_job", kw_only=True):
    """End this run of the job and queue it again under its id; `held`: until it is released; `without`: not on these nodes."""

    seen: JobStatus
    held: bool
    without: tuple[str, ...] = ()


class AvoidNodes(Record, frozen=True, tag="avoid_nodes", kw_only=True):
    """Keep nodes from the job's next run: excluded from this job, or drained for all jobs."""

    job: str
    nodes: tuple[str, ...]
    drain: bool


class ReleaseJob(Record, frozen=True, tag="release_job"):
    """Let the held job start."""

    job: str


JobStep = ConfirmJob | ConfirmCheckpoint | TerminateJob | RequeueJob | AvoidNodes | ReleaseJob


def in_words(step: JobStep) -> tuple[str, str]:
    """What a step does, and to whom, as plans and reports say it."""
    match step:
        case ConfirmJob(seen) | TerminateJob(seen):
            return ("confirm_job" if isinstance(step, ConfirmJob) else "terminate_job"), seen.job
        case RequeueJob():
            return ("requeue_job_held" if step.held else "requeue_job"), " without ".join((step.seen.job, *step.without))
        case ConfirmCheckpoint():
            return "confirm_checkpoint", step.directory
        case AvoidNodes():
            return ("drain_nodes" if step.drain else "exclude_nodes"), ",".join(step.nodes)
        case ReleaseJob():
            return "release_job", step.job
