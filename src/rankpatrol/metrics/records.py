"""All that the metrics of one job on one node are made of: its state.json as far as it is used here, and what its events add up to.

A reading is plain data: an agent can serve its own, or send it to whoever serves the readings of many nodes.
"""

import msgspec

from rankpatrol.core.records import Missing, Record

# A log may name a step that no machine word holds.
Count = int | float


class RankNow(Record, frozen=True, kw_only=True):
    """One rank as its agent last saw it. `state` and `phase` are None where they are not known."""

    rank: int
    node: str = ""
    state: str | None = None
    phase: str | None = None
    still_for_s: float | None = None
    step: Count | None = None


class Found(Record, frozen=True, kw_only=True):
    """What of a diagnosis a metric can bear: words of the taxonomy, and ranks."""

    verdict: str = "unknown"
    cause: str = "unknown"
    certainty: str = "unknown"
    culprit_ranks: tuple[int, ...] | None = None


class IncidentNow(Record, frozen=True, kw_only=True):
    """An incident, open or closed. `quiet`: people are not told of it unless it comes to a verdict."""

    stage: str
    onset_unix_s: float | None = None
    diagnosis: Found = Found()
    quiet: bool = False

    def is_open(self) -> bool:
        """True while people should know of it."""
        return self.stage != "closed" and not (self.quiet and self.stage == "alerted")


class GoodCheckpoint(Record, frozen=True, kw_only=True):
    """A checkpoint that was read and found whole."""

    modified_unix_s: float
    step: Count | None = None


class BadCheckpoint(Record, frozen=True, kw_only=True):
    """A newer one that is not good, or not yet."""

    verdict: str = "unknown"


class CheckpointsNow(Record, frozen=True, kw_only=True):
    """What the last look at the directory of checkpoints said; `reason` where there was none."""

    newest_good: GoodCheckpoint | None = None
    rejected: tuple[BadCheckpoint, ...] = ()
    reason: str | None = None


class PauseNow(Record, frozen=True, kw_only=True):
    """Nobody acts, since then."""

    since_unix_s: float


class NodeNow(Record, frozen=True, kw_only=True):
    """Another node of the job, and how long ago the agent that judges heard of it; None where it never did."""

    node: str
    heard_ago_s: float | None = None


class AgentNow(Record, frozen=True, kw_only=True):
    """The agent itself: what it has used so far, with the tools that it ran, and what it could not yet carry to the job directory."""

    node: str
    version: str
    cpu_s: float
    resident_bytes: Count
    backlog_records: Count
    scheduler_job: str = ""


class JobNow(Record, frozen=True, kw_only=True):
    """state.json."""

    at_unix_s: float
    job: str = "?"
    policy: str = "?"
    started_unix_s: float | None = None
    ended: str | None = None
    attempt: Count | None = None
    world_size: Count | None = None
    step: Count | None = None
    phase: str | None = None
    ranks: tuple[RankNow, ...] = ()
    nodes: tuple[NodeNow, ...] = ()
    incident: IncidentNow | None = None
    asides: tuple[IncidentNow, ...] = ()
    paused: PauseNow | None = None
    answer_with: str | None = None
    checkpoints_wanted: bool = False
    checkpoints: CheckpointsNow = CheckpointsNow()
    agent: AgentNow | None = None


class Tally(Record, frozen=True, kw_only=True):
    """What a job's events add up to. Counted from the journal, so that an agent that was started again goes on with the same numbers.

    `recent` holds the last steps of this attempt with their times; `failed` the onsets of judged failures, by attempt.
    """

    alerts: int = 0
    attempts: int = 0
    attempts_ended: dict[str, int] = msgspec.field(default_factory=dict)
    verdicts: dict[str, int] = msgspec.field(default_factory=dict)
    closed: dict[str, int] = msgspec.field(default_factory=dict)
    actions_done: dict[str, int] = msgspec.field(default_factory=dict)
    actions_failed: dict[str, int] = msgspec.field(default_factory=dict)
    bundles: int = 0
    sealing_s: float = 0.0
    seals_failed: int = 0
    progress_unix_s: float | None = None
    recent: tuple[tuple[float, int], ...] = ()
    failed: dict[int, float] = msgspec.field(default_factory=dict)


class TimesOfIncident(Record, frozen=True, kw_only=True):
    """From the onset of the last incident until it was noticed, a rank was named, and the job went beyond where it had been."""

    detect_s: float
    name_s: float | None = None
    recover_s: float | None = None


class Goodput(Record, frozen=True, kw_only=True, tag="goodput"):
    """Where the wall time went so far, by part; the parts sum to it."""

    parts_s: dict[str, float]
    ratio: float | None
    last: TimesOfIncident | None = None


class Reading(Record, frozen=True, kw_only=True):
    """One job on one node at one moment. `goodput` is Missing where it is not counted."""

    now: JobNow
    tally: Tally = Tally()
    goodput: Goodput | Missing = Missing("not counted yet")
