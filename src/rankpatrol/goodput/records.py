"""What is read of events.jsonl, and the account that is made of it. All times are UTC seconds as told, straightened (reading.py)."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from rankpatrol.core.records import Missing, Record

# Years 1970 to 5138: what lies outside is no time.
TIMES_S = (0.0, 1e11)
UnixTime = Annotated[float, msgspec.Meta(ge=TIMES_S[0], lt=TIMES_S[1])]


class Part(StrEnum):
    """What a moment of wall time was spent on. Each moment has exactly one."""

    PRODUCTIVE = "productive"
    INITIALISATION = "initialisation"
    CHECKPOINT = "checkpoint"
    STALL = "stall"
    LOST_WORK = "lost_work"
    RECOVERY = "recovery"
    QUEUE = "queue"
    IDLE = "idle"


# The same times in the words of Google's ml-goodput-measurement (its BadputType); where it has no word, its word is OTHER.
BADPUT_TYPES = {
    Part.INITIALISATION: ("TPU_INITIALIZATION", "TRAINING_PREP", "PROGRAM_STARTUP"),
    Part.CHECKPOINT: ("UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",),
    Part.LOST_WORK: ("WASTED_PROGRESS_FROM_DISRUPTION",),
    Part.RECOVERY: ("INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION", "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"),
    Part.STALL: ("OTHER",),
    Part.QUEUE: ("OTHER",),
    Part.IDLE: ("OTHER",),
}


class Moment(Record, frozen=True, kw_only=True, gc=False):
    """What of a line is read where it tells of progress alone. Nothing in it leads back to it: the garbage collector need not look."""

    at_unix_s: UnixTime
    kind: str
    attempt: Annotated[int, msgspec.Meta(ge=0)] = 0
    step: Any = None


class Event(Moment, frozen=True, kw_only=True, gc=False):
    """One line, by the contract; what other writers may have put into a field is checked where it is used."""

    incident: int | str | None = None
    command: Any = None
    ranks: Any = None
    launched_unix_s: Any = None
    scheduler_restarts: Any = None
    rank: Any = None
    phase: Any = None
    since: Any = None
    onset_unix_s: Any = None
    verdict: Any = None
    cause: Any = None
    sentence: Any = None
    suspect_ranks: Any = None
    culprit_ranks: Any = None
    how: Any = None
    reason: Any = None
    what: Any = None
    done: Any = None


class Span(Record, frozen=True):
    """Wall time from one moment to another."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Never negative."""
        return max(0.0, self.end_s - self.begin_s)


class Piece(Record, frozen=True):
    """A span and what it was spent on."""

    span: Span
    part: Part


class Attempt(Record, frozen=True, kw_only=True):
    """One attempt as its events tell it. `resumed_step` is None where nobody told it; `steps` only ever rise."""

    number: int
    span: Span
    reason: str | None
    nodes: dict[int, str]
    requeued: bool
    resumed_step: int | None
    steps: tuple[tuple[float, int], ...]
    phases: tuple[tuple[float, str], ...]
    checkpoints: tuple[Span, ...]
    compilations: tuple[Span, ...]


class Incident(Record, frozen=True, kw_only=True):
    """One incident as its events tell it. `verdict` is None where it never came to one. `acted`: rankpatrol ended or requeued something."""

    launch: int
    incident: str
    attempt: int
    cause: str
    verdict: str | None
    sentence: str
    culprit_ranks: tuple[int, ...]
    onset_s: float
    detected_s: float
    identified_s: float | None
    closed_s: float | None
    how: str | None
    acted: bool = False


class Launch(Record, frozen=True, kw_only=True):
    """One job directory's events: one start of the launcher, with its attempts."""

    source: str
    command: tuple[str, ...] | None
    world_size: int | None
    span: Span
    ended: bool
    attempts: tuple[Attempt, ...]
    incidents: tuple[Incident, ...]
    queued: tuple[Span, ...]
    remarks: tuple[str, ...]


class Prevented(Record, frozen=True, kw_only=True):
    """What torch's own time-out would have cost, had nobody ended the hang before it."""

    time_out: str
    time_out_s: float
    stall_saved_s: float
    rank_hours_saved: float | None


class Card(Record, frozen=True, kw_only=True):
    """One incident's cost. Durations from its onset; `rank_hours` is all of it times the job's ranks (one GPU each, as a rule)."""

    incident: Incident
    nodes: tuple[str, ...]
    time_to_detect_s: float
    time_to_identify_s: float | Missing
    time_to_recover_s: float | Missing
    stall_s: float
    recovery_s: float
    queue_s: float
    lost_work_s: float
    ranks: int | None
    rank_hours: float | None
    prevented: tuple[Prevented, ...]


class Account(Record, frozen=True, kw_only=True):
    """Where one run's wall time went. The parts sum to `wall_s`; `ettr_ratio` (effective training time ratio) is productive by wall."""

    sources: tuple[str, ...]
    attempts: int
    ranks: int | None
    span: Span
    wall_s: float
    parts_s: dict[Part, float]
    ettr_ratio: float | Missing
    pieces: tuple[Piece, ...]
    cards: tuple[Card, ...]
    mean_time_to_detect_s: float | Missing
    mean_time_to_identify_s: float | Missing
    mean_time_to_recover_s: float | Missing
    remarks: tuple[str, ...]
