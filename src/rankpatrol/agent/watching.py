"""Follows jobs that already run: finds them, keeps an agent for each, and notices new attempts."""

import time
from collections.abc import Callable
from pathlib import Path

from rankpatrol.agent.attachment import Attachment
from rankpatrol.collect.candidates import candidates, parents
from rankpatrol.core.records import Record
from rankpatrol.discover.jobs import NAMES, VARIABLES, matching, survey
from rankpatrol.discover.records import FoundJob, Survey
from rankpatrol.launch.agent_keeper import AgentKeeper, agent_command
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.system.process import identify

# Reading thousands of environments costs: it is done again when a rank has gone, and else only now and then.
SURVEY_EVERY_S, RENEW_EVERY_S = 15.0, 2.0


class Wanted(Record, frozen=True, kw_only=True):
    """Which jobs the user means; all of this node where nothing is given. `pids`: those that have one of these as a rank."""

    pid: int | None = None
    job: str | None = None
    pids: frozenset[int] | None = None


class Watching:
    """The jobs under watch. `spec_of` says how a newly found one is to be patrolled."""

    def __init__(self, wanted: Wanted, spec_of: Callable[[FoundJob], JobSpec], unblock: Callable[[], None]) -> None:
        self._wanted, self._spec_of, self._unblock = wanted, spec_of, unblock
        self._kept: dict[str, tuple[Attachment, AgentKeeper]] = {}
        self._jobs: dict[str, FoundJob] = {}
        self._surveyed_at_s = 0.0

    def round(self) -> None:
        """Look for new jobs and attempts where that is due, and keep each job's agent alive."""
        age_s = time.monotonic() - self._surveyed_at_s
        if age_s >= SURVEY_EVERY_S or (self._somebody_is_gone() and age_s >= RENEW_EVERY_S):
            self.take_in(look_around(self._wanted)[0])
        for key, (attachment, keeper) in list(self._kept.items()):
            if self._is_over(key):
                attachment.over()
                keeper.farewell(())
                keeper.dismiss()
                attachment.run_dir.remove()
                del self._kept[key], self._jobs[key]
            else:
                keeper.keep()

    def take_in(self, found: tuple[FoundJob, ...]) -> None:
        """Watch these jobs from now on; those of `rankpatrol run` have a patrol already."""
        self._surveyed_at_s = time.monotonic()
        for job in found:
            if job.patrolled_by and Path(job.patrolled_by).exists():
                continue
            if job.key not in self._kept:
                attachment = Attachment(job, self._spec_of(job))
                self._kept[job.key] = attachment, AgentKeeper(agent_command(attachment.run_dir.path), self._unblock)
            self._jobs[job.key] = job
            self._kept[job.key][0].register(job)

    def watches(self) -> bool:
        """True while there is a job left."""
        return bool(self._kept)

    def job_dirs(self) -> tuple[str, ...]:
        """Where what is seen of each job is written."""
        return tuple(attachment.spec.job_dir for attachment, _ in self._kept.values())

    def leave(self) -> None:
        """End the watch; the jobs go on."""
        for attachment, keeper in self._kept.values():
            keeper.dismiss()
            attachment.run_dir.remove()
        self._kept.clear()

    def _somebody_is_gone(self) -> bool:
        return any(identify(rank.process.pid) != rank.process for job in self._jobs.values() for rank in job.ranks)

    def _is_over(self, key: str) -> bool:
        job = self._jobs[key]
        above = [] if job.launcher is None else [job.launcher]
        return not any(identify(process.pid) == process for process in (*above, *(rank.process for rank in job.ranks)))


def look_around(wanted: Wanted) -> tuple[tuple[FoundJob, ...], Survey]:
    """The wanted jobs of this node as it is now, and all that was found."""
    seen = list(candidates(VARIABLES, NAMES))
    found = survey(seen)
    if wanted.pids is not None:
        return tuple(job for job in found.jobs if any(rank.process.pid in wanted.pids for rank in job.ranks)), found
    return matching(found, pid=wanted.pid, job=wanted.job, parents=parents(seen)), found
