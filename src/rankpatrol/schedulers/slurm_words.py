"""Slurm's words in ours, and which words may be said to Slurm. Pure; a new word is a new row."""

import re
from collections.abc import Collection, Iterator

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState

# squeue(1), "JOB STATE CODES"; in 24.11's JSON a state is a list of these, base state and flags alike.
STATES = {
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "POWER_UP_NODE": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "EXPEDITING": JobState.PENDING,
    "STAGE_OUT": JobState.ENDING,
    "COMPLETING": JobState.ENDING,
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,
    "COMPLETED": JobState.ENDED,
    "CANCELLED": JobState.ENDED,
    "FAILED": JobState.ENDED,
    "TIMEOUT": JobState.ENDED,
    "NODE_FAIL": JobState.ENDED,
    "PREEMPTED": JobState.ENDED,
    "BOOT_FAIL": JobState.ENDED,
    "DEADLINE": JobState.ENDED,
    "OUT_OF_MEMORY": JobState.ENDED,
    "LAUNCH_FAILED": JobState.ENDED,
    "RECONFIG_FAIL": JobState.ENDED,
    "REVOKED": JobState.ENDED,
}
# Of several words of one job the one that says most: a job that completes is RUNNING or FAILED besides.
_FIRST = (JobState.UNKNOWN, JobState.ENDING, JobState.ENDED, JobState.SUSPENDED, JobState.PENDING, JobState.RUNNING)
# squeue writes blanks where scontrol and the JSON write underscores (all seen in 22.05).
_HELD = frozenset(
    {"jobheldadmin", "jobhelduser", "job_requeued_in_held_state", "jobholdmaxrequeue", "job_held_by_user", "job_held_by_admin"}
)
WAITS = {
    "begintime": "a job that was requeued waits for its credentials to run out: 120 s as Slurm is shipped (AuthInfo=cred_expire)",
    "resources": "it waits for free nodes",
    "priority": "jobs of higher priority go first",
    "dependency": "it waits for another job",
    "none": "the scheduler has not looked at it yet",
    "": "the scheduler has not looked at it yet",
}
_JOB_ID = re.compile(r"[1-9][0-9]{0,9}(?:[_+][0-9]{1,7})?", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?", re.ASCII)
_MOST_NODES = 65536  # MAX_SLURM_NODES
_PART = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)")
_BRACKET = re.compile(r"\[([0-9,-]+)\]")


def state_of(words: str | Collection[str]) -> JobState:
    """One state for one word or several; UNKNOWN as soon as one of them is not known."""
    told = {STATES.get(word, JobState.UNKNOWN) for word in ([words] if isinstance(words, str) else words)}
    return next((state for state in _FIRST if state in told), JobState.UNKNOWN)


def is_held(reason: str) -> bool:
    """True where somebody must release it before it starts."""
    return reason.strip("()").replace(" ", "_").lower() in _HELD


def why_waiting(reason: str) -> str:
    """What a pending job waits for, in plain words; Slurm's own where we have none."""
    if is_held(reason):
        return "it is held until somebody releases it"
    if "DOWN" in reason or "DRAINED" in reason:
        return "too few of its nodes are up: some are down, drained or reserved"
    return WAITS.get(reason.replace("_", "").lower(), f"Slurm says {reason}")


def checked_job(job: str) -> str:
    """The id where it is one of Slurm's (8123, 8123_4, 8123+1), else BadInput: nothing else is ever put on Slurm's command lines."""
    if not _JOB_ID.fullmatch(job):
        raise BadInput(f"{job[:80]!r} is not a Slurm job id", help="Give the number that sbatch printed, or of an array 8123_4.")
    return job


def checked_node(node: str) -> str:
    """The name where it can be a node's, else BadInput."""
    if not _NODE.fullmatch(node):
        raise BadInput(f"{node[:80]!r} is not the name of a node", help="Give names as `sinfo -N` lists them.")
    return node


def is_job_id(job: str) -> bool:
    """True where Slurm may be asked for it."""
    return _JOB_ID.fullmatch(job) is not None


def nodes_of(hostlist: str) -> tuple[str, ...]:
    """The nodes of a hostlist (`n[1-3,7],gpu-01`), in its order; none where it is no hostlist."""
    if hostlist in {"", "(null)", "None assigned"}:
        return ()
    found: dict[str, None] = {}
    for part in _PART.findall(hostlist):
        for node in _expanded(part):
            if len(found) >= _MOST_NODES or not _NODE.fullmatch(node):
                return ()
            found[node] = None
    return tuple(found)


def _expanded(part: str) -> Iterator[str]:
    bracket = _BRACKET.search(part)
    if bracket is None:
        yield part
        return
    before, after = part[: bracket.start()], part[bracket.end() :]
    for span in bracket.group(1).split(","):
        first, _, last = span.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            yield part  # no name: the caller refuses it
            return
        end = int(last or first)
        for number in range(int(first), min(end, int(first) + _MOST_NODES) + 1):
            for rest in _expanded(after):
                yield f"{before}{number:0{len(first)}d}{rest}"
