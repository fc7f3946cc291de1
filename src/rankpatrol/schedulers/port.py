"""What rankpatrol asks of whoever runs the job. One adapter a scheduler, one file each."""

from typing import Protocol

from rankpatrol.core.records import Record
from rankpatrol.core.starts import NextStart


class EndReport(Record, frozen=True, kw_only=True):
    """What came of a request to end an attempt, read back: the ranks that ended, and why others did not."""

    ended: tuple[int, ...]
    failed: dict[int, str]


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
