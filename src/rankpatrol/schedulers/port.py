"""What rankpatrol asks of whoever runs the job. One adapter a scheduler, one file each."""

from typing import Literal, Protocol

import msgspec

from rankpatrol.core.jobs import JobProcess, JobState, JobStatus
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.starts import NextStart


class EndReport(Record, frozen=True, kw_only=True):
    """What came of a request to end an attempt, read back: the ranks that ended, and why others did not.

    `beyond` are ranks on nodes that nobody can reach: the job's scheduler will hear of them no sooner than we do.
    """

    ended: tuple[int, ...]
    failed: dict[int, str]
    beyond: dict[int, str] = msgspec.field(default_factory=dict)


class Scheduler(Protocol):
    """The job's scheduler, by job id. Every method returns in bounded time and may be repeated without harm."""

    name: str

    def describe(self) -> dict[str, object]:
        """What the scheduler knows of the job, for the bundle. May be stale by its own poll interval."""
        ...

    def resume_from(self, start: NextStart) -> str:
        """Fix how an attempt will start and return the checkpoint that stands: an earlier word for it wins. Raises OSError."""
        ...

    def end_job(self) -> str:
        """Have the whole job ended in order, without another attempt; returns at once. Empty where that is on its way, else why not."""
        ...

    def end_attempt(self, attempt: int, grace_s: float) -> EndReport:
        """End all ranks of one attempt and no other, in order (SIGTERM, then SIGKILL after `grace_s`); the scheduler restarts the job."""
        ...


Avoid = Literal["exclude", "drain"]


class JobScheduler(Protocol):
    """Whoever runs jobs, by job id. Every method returns in bounded time; each deed reads back what came of it.

    A deed answers with nothing where it is done, else with why it is not, or that it is not known. `terminate` and `requeue` are given
    what was seen of the job, and touch it only while that still holds.
    """

    name: str

    def describe(self, job: str) -> JobStatus:
        """What is known of the job now; UNKNOWN with the reason, never an error."""
        ...

    def processes(self, job: str) -> tuple[JobProcess, ...] | Missing:
        """Its processes on this node."""
        ...

    def terminate(self, seen: JobStatus) -> str:
        """End it for good."""
        ...

    def requeue(self, seen: JobStatus, *, held: bool, without: tuple[str, ...] = ()) -> str:
        """End it and have it start again under the same id; `held`: not before it is released, and off its nodes when this returns.

        `without`: nodes to exclude in the same breath, for a caller who may be ended by this very order.
        """
        ...

    def avoid(self, job: str, nodes: tuple[str, ...], how: Avoid) -> str:
        """Keep these nodes from its next start."""
        ...

    def release(self, job: str) -> str:
        """Let a held job start."""
        ...


_RUNS = frozenset({JobState.RUNNING, JobState.SUSPENDED})


def changed(seen: JobStatus, now: JobStatus) -> str:
    """Why the job that was seen may not be touched any more, or nothing where it is still what it was."""
    if now.state is JobState.UNKNOWN:
        return f"nothing was done: {now.reason or f'the scheduler says {now.said}, which is not known here'}"
    if now.state not in _RUNS:
        return f"nothing was done: the job is {now.said or now.state} now"
    if now.life == seen.life:
        return ""
    what = f"restart {now.restarts}, not {seen.restarts}" if now.restarts != seen.restarts else "its processes are others"
    return f"nothing was done: the job was started again since ({what})"
