"""What the commands read of state.json and of an incident's events: typed, since a job directory may be of another version, or edited."""

from typing import Annotated, Any

import msgspec

from rankpatrol.core.records import Missing, Record
from rankpatrol.launch.pauses import Pause

# UTC seconds that a calendar has (until the year 5138); lengths of time that a sentence can say; what 64 bits hold.
UnixTime = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]
Length = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]
Count = Annotated[int, msgspec.Meta(ge=-(10**18), le=10**18)]


class Said(Record, frozen=True, kw_only=True):
    """A diagnosis, as far as the commands print it."""

    verdict: str = ""
    sentence: str = ""
    reasons_for: tuple[str, ...] = msgspec.field(name="for", default=())
    reasons_against: tuple[str, ...] = msgspec.field(name="against", default=())
    suggested: tuple[str, ...] = ()


class OpenIncident(Record, frozen=True, kw_only=True):
    """The incident of a state, open or closed."""

    incident: Count
    stage: str
    attempt: Count = 0
    waits_for: str | None = None
    diagnosis: Said = Said()


class Aside(Record, frozen=True, kw_only=True):
    """An incident that nothing is done about."""

    incident: Count
    diagnosis: Said = Said()


class RankRow(Record, frozen=True, kw_only=True):
    """One rank as its agent last saw it."""

    rank: Count
    node: str = ""
    pid: Count | None = None
    exit_status: Count | None = None
    still_for_s: Length | None = None
    step: Count | None = None
    at: str | None = None


class GroupRow(Record, frozen=True, kw_only=True):
    """Process groups that are alike."""

    name: str
    groups: Count = 1
    backend: str = ""
    ranks: Count = 0
    timeout_s: Length | None = None


class NodeRow(Record, frozen=True, kw_only=True):
    """Another node of the job, as the agent that judges hears it."""

    node: str
    heard_ago_s: Length | None = None
    every_s: Length = 1.0
    clock_ahead_s: Annotated[float, msgspec.Meta(gt=-1e11, lt=1e11)] | None = None
    problem: str = ""


class BindingRow(Record, frozen=True, kw_only=True):
    """Ranks that were bound, or not, alike."""

    ranks: str
    words: str


class JobState(Record, frozen=True, kw_only=True):
    """state.json, as far as the commands use it."""

    at_unix_s: UnixTime
    job: str = "?"
    policy: str = "?"
    patience_s: Length = 0.0
    ended: str | None = None
    attempt: Count | None = None
    step: Count | None = None
    world_size: Count | None = None
    ranks: tuple[RankRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    bindings: tuple[BindingRow, ...] = ()
    incident: OpenIncident | None = None
    asides: tuple[Aside, ...] = ()
    nodes: tuple[NodeRow, ...] = ()
    paused: Pause | None = None
    answer_with: str | None = None
    run_dir_full: str | None = None


class Told(Record, frozen=True, kw_only=True):
    """One event of an incident's story; which fields it has goes by its kind."""

    at_unix_s: UnixTime
    kind: str
    incident: Count | str
    verdict: str = "alert"
    cause: str = "unknown"
    certainty: str = "suspected"
    sentence: str = ""
    path: str | None = None
    what: str = "?"
    target: Any = None
    done: bool | None = None
    why: str | None = None
    seconds: float | None = None
    command: str = "?"
    by: str = "?"
    how: str = "?"


def told(event: dict[str, Any]) -> Told | Missing:
    """An event's fields, or why they are not what the contract says."""
    try:
        return msgspec.convert(event, Told)
    except msgspec.ValidationError as problem:
        return Missing(str(problem))
