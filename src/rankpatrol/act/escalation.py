"""In-place restarts come first; when the brake has ended those, a requeue without the suspect node may still help. Pure.

Rules in order, one a row; the first that speaks is the reason why the job ends instead.
"""

from collections.abc import Callable

from msgspec.structs import replace

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.jobs import JobStatus

# The same failure on three nodes is none of a node's.
MOST_REQUEUES = 2
# What another node would not have more of, or where the fault lies in what every node reads.
_NOT_OF_A_NODE = frozenset({
    "user_exception",
    "disk_full",
    "host_oom_kill",
    "data_worker_killed_oom",
    "data_loader_worker_stuck",
    "data_loader_fork_lock",
    "rank_missing_collective",
    "ckpt_truncated",
    "timeout_too_short",
    "left_early",
    "teardown_deadlock",
})  # fmt: skip

Rule = Callable[[Diagnosis, JobStatus], str]


def why_no_requeue(stop: Diagnosis, failed_of: str | None, job: JobStatus) -> str:
    """Why a job that was stopped is not queued again elsewhere, or nothing where that may help. `failed_of`: the cause each time."""
    found = replace(stop, cause=failed_of or stop.cause)
    return next((why for rule in RULES if (why := rule(found, job))), "")


def _done(stop: Diagnosis, _job: JobStatus) -> str:
    return "its work is done" if stop.verdict == "zombie_job" else ""


def _data(stop: Diagnosis, _job: JobStatus) -> str:
    return f"every node reads {stop.file}" if stop.file is not None else ""


def _everywhere(stop: Diagnosis, _job: JobStatus) -> str:
    return f"{stop.cause} would meet it on any node" if stop.cause in _NOT_OF_A_NODE else ""


def _nobody(stop: Diagnosis, _job: JobStatus) -> str:
    return "" if stop.culprit_ranks else "no rank is named, so no node is suspect"


def _often(_stop: Diagnosis, job: JobStatus) -> str:
    if job.restarts is None:
        return "how often it was requeued already is not known"
    return f"it was requeued {job.restarts} times already" if job.restarts >= MOST_REQUEUES else ""


def _refused(_stop: Diagnosis, job: JobStatus) -> str:
    if job.is_batch is False:
        return "it was started by srun or salloc, and only batch jobs can be requeued"
    return "it was submitted with --no-requeue" if job.may_requeue is False else ""


def _others(_stop: Diagnosis, job: JobStatus) -> str:
    """A patrol sees one node. What runs on the job's other nodes may be well, and would be ended too."""
    return "" if len(job.nodes) == 1 else f"it has {len(job.nodes)} nodes, and what the others do is not seen from here"


RULES: tuple[Rule, ...] = (_done, _data, _everywhere, _nobody, _others, _refused, _often)
