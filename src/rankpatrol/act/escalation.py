"""In-place restarts come first; when the brake has ended those, a requeue without the suspect node may still help. Pure.

Rules in order, one a row; the first that speaks is the reason why the job ends instead.
"""

from collections.abc import Callable

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.jobs import JobStatus
from rankpatrol.core.records import Record

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


class Stopped(Record, frozen=True, kw_only=True):
    """A job that another attempt in place will not help, and its scheduler's word on it.

    `failed_of`: the cause each time, where the diagnosis names another. `seen`: the nodes whose ranks are patrolled; `suspects`: those of
    the culprits. `components`: of a heterogeneous job, how many it has.
    """

    diagnosis: Diagnosis
    job: JobStatus
    seen: tuple[str, ...]
    suspects: tuple[str, ...]
    failed_of: str | None = None
    components: int = 1


Rule = Callable[[Stopped], str]


def why_no_requeue(stopped: Stopped) -> str:
    """Why a job that was stopped is not queued again elsewhere, or nothing where that may help."""
    return next((why for rule in RULES if (why := rule(stopped))), "")


def _done(stopped: Stopped) -> str:
    return "its work is done" if stopped.diagnosis.verdict == "zombie_job" else ""


def _data(stopped: Stopped) -> str:
    return f"every node reads {stopped.diagnosis.file}" if stopped.diagnosis.file is not None else ""


def _everywhere(stopped: Stopped) -> str:
    cause = stopped.failed_of or stopped.diagnosis.cause
    return f"{cause} would meet it on any node" if cause in _NOT_OF_A_NODE else ""


def _nobody(stopped: Stopped) -> str:
    return "" if stopped.diagnosis.culprit_ranks else "no rank is named, so no node is suspect"


def _components(stopped: Stopped) -> str:
    """Slurm queues all components of a job again or none, and each has exclusions of its own."""
    if stopped.components < 2:
        return ""
    return f"it is a heterogeneous job of {stopped.components} components: a person has to requeue it (scontrol requeue, of the first one)"


def _unseen(stopped: Stopped) -> str:
    """What runs on a node that nobody here sees may be well, and would be ended too."""
    unseen = [node for node in stopped.job.nodes if node not in stopped.seen]
    if stopped.job.nodes and not unseen:
        return ""
    what = f"what {', '.join(unseen[:3])}{' …' if len(unseen) > 3 else ''} does" if unseen else "what they do"
    return f"it has {len(stopped.job.nodes)} nodes, and {what} is not seen from here"


def _nowhere(stopped: Stopped) -> str:
    nodes, suspects = set(stopped.job.nodes), set(stopped.suspects)
    if not suspects or suspects - nodes:
        return "the culprit's node is none that Slurm names"
    return (
        f"its culprits are on all its {len(nodes)} nodes, so none in particular is suspect" if len(nodes) > 1 and suspects == nodes else ""
    )


def _often(stopped: Stopped) -> str:
    restarts = stopped.job.restarts
    if restarts is None:
        return "how often it was requeued already is not known"
    return f"it was requeued {restarts} times already" if restarts >= MOST_REQUEUES else ""


def _refused(stopped: Stopped) -> str:
    if stopped.job.is_batch is False:
        return "it was started by srun or salloc, and only batch jobs can be requeued"
    return "it was submitted with --no-requeue" if stopped.job.may_requeue is False else ""


RULES: tuple[Rule, ...] = (_done, _data, _everywhere, _nobody, _components, _unseen, _nowhere, _refused, _often)
