"""A job as its scheduler tells of it, in our own words."""

from enum import StrEnum

from rankpatrol.core.records import ProcessId, Record


class JobState(StrEnum):
    """What a job is at. UNKNOWN: the scheduler does not answer, does not know the job, or says a word that we do not know."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    ENDED = "ended"
    UNKNOWN = "unknown"


class JobStatus(Record, frozen=True, kw_only=True):
    """One answer about one job. `said` is the scheduler's own word, `reason` why it waits, or why nothing is known.

    `queued_unix_s` is when it was put into the queue for this run, `expected_unix_s` when a pending job may start at the earliest, by the
    scheduler's own reckoning. `restarts` is the scheduler's own count; None, as for each other fact, where it does not tell. `local_id` is
    the id that its processes wear, where that is another. `run` is what else tells this run of the job from another. `may_hold`: it can be
    ended and kept from starting until it is released; `part_of`: the larger job that would make it again.
    """

    job: str
    state: JobState
    said: str = ""
    reason: str = ""
    restarts: int | None = None
    queued_unix_s: float | None = None
    started_unix_s: float | None = None
    expected_unix_s: float | None = None
    ends_unix_s: float | None = None
    time_limit_s: float | None = None
    nodes: tuple[str, ...] = ()
    avoided: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    held: bool = False
    is_batch: bool | None = None
    may_requeue: bool | None = None
    world_size: int | None = None
    local_id: str = ""
    run: str = ""
    may_hold: bool | None = None
    part_of: str = ""

    @property
    def life(self) -> tuple[str, int | None, float | None, str]:
        """What makes two answers speak of the same run of the job: a requeue leaves the id and changes these."""
        return self.job, self.restarts, self.started_unix_s, self.run


class JobProcess(Record, frozen=True, kw_only=True):
    """One process of a job on this node, in which step, and whose word that is: cgroup, listpids, environ or shim.

    `node` is the scheduler's name of this node, where the process knows it.
    """

    process: ProcessId
    step: str
    told_by: str
    rank: int | None = None
    node: str | None = None
