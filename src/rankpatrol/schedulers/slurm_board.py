"""What Slurm says of many jobs, learned in one query for all of them, and less often while Slurm does not answer."""

from collections.abc import Callable

from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.schedulers.slurm_client import SlurmSilent
from rankpatrol.system.clock import Clock

# A query of squeue locks slurmctld's job table: sites ask for no more than a few a minute from each client.
EVERY_S, LONGEST_S = 15.0, 240.0
Ask = Callable[[tuple[str, ...]], tuple[JobStatus, ...]]


class JobBoard:
    """The last word on each job that is followed. Nobody acts upon it: whoever acts asks for that one job afresh."""

    def __init__(self, ask: Ask, clock: Clock) -> None:
        self._ask, self._clock = ask, clock
        self._known: dict[str, JobStatus] = {}
        self._wait_s, self._due_mono_s = EVERY_S, 0.0

    def follow(self, job: str) -> None:
        """From the next query on."""
        self._known.setdefault(job, JobStatus(job=job, state=JobState.UNKNOWN, reason="not asked yet"))

    def forget(self, job: str) -> None:
        """Ask no more for it."""
        self._known.pop(job, None)

    def status(self, job: str) -> JobStatus:
        """What was said last; UNKNOWN with the reason where that is nothing."""
        return self._known.get(job) or JobStatus(job=job, state=JobState.UNKNOWN, reason="nobody follows this job")

    def refresh(self) -> bool:
        """Ask where that is due, and say whether anything was learned. Waits no longer than one command's deadline."""
        if not self._known or self._clock.mono_s() < self._due_mono_s:
            return False
        try:
            told = self._ask(tuple(self._known))
        except SlurmSilent as problem:
            # What was known is old now, and may be wrong: a job may end meanwhile.
            self._known = {job: JobStatus(job=job, state=JobState.UNKNOWN, reason=str(problem)) for job in self._known}
            self._wait_s = min(LONGEST_S, self._wait_s * 2)
            self._due_mono_s = self._clock.mono_s() + self._wait_s
            return False
        by_id = {job.local_id: job for job in told} | {job.job: job for job in told}
        gone = "Slurm does not know this job: it was never there, or ended longer ago than MinJobAge"
        self._known = {job: by_id.get(job) or JobStatus(job=job, state=JobState.UNKNOWN, reason=gone) for job in self._known}
        self._wait_s, self._due_mono_s = EVERY_S, self._clock.mono_s() + EVERY_S
        return True
