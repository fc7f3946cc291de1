"""Objects of the Kubernetes API, read into records. Pure. Foreign JSON is refused whole, and its words are made plain."""

import calendar
import re
from typing import TypeVar

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Record

_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(\.\d+)?Z", re.ASCII)
_MOST_WORDS = 200


class Owner(Record, frozen=True, rename="camel"):
    """One owner of an object; the controller is the one that makes it again."""

    uid: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(Record, frozen=True, rename="camel"):
    """What every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None

    @property
    def controller(self) -> Owner | None:
        return next((owner for owner in self.owner_references or () if owner.controller), None)


class Condition(Record, frozen=True, rename="camel"):
    """A word about an object that is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Waiting(Record, frozen=True, rename="camel"):
    """Why a container does not run yet."""

    reason: str | None = None
    message: str | None = None


class ContainerState(Record, frozen=True, rename="camel"):
    """Only what a container waits for is of interest."""

    waiting: Waiting | None = None


class ContainerStatus(Record, frozen=True, rename="camel"):
    """One container of a pod."""

    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    restart_count: int = 0
    state: ContainerState | None = None


class PodStatus(Record, frozen=True, rename="camel"):
    """What the kubelet last said of a pod."""

    phase: str = ""
    reason: str | None = None
    start_time: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Variable(Record, frozen=True, rename="camel"):
    """One variable of a container's environment; None where it is taken from elsewhere."""

    name: str = ""
    value: str | None = None


class Container(Record, frozen=True, rename="camel"):
    """One container as it was asked for."""

    env: tuple[Variable, ...] | None = None


class PodSpec(Record, frozen=True, rename="camel"):
    """A pod as it was asked for, and the node that it was given."""

    node_name: str | None = None
    hostname: str | None = None
    containers: tuple[Container, ...] | None = None


class Pod(Record, frozen=True):
    """One pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class RunPolicy(Record, frozen=True, rename="camel"):
    """PyTorchJob's."""

    suspend: bool | None = None
    active_deadline_seconds: int | None = None


class JobSpec(Record, frozen=True, rename="camel"):
    """A job as it was asked for. `suspend` is None where the API server does not know it (batch/v1 before 1.22), or nobody set it."""

    suspend: bool | None = None
    active_deadline_seconds: int | None = None
    run_policy: RunPolicy | None = None


class ReplicaStatus(Record, frozen=True, rename="camel"):
    """PyTorchJob's count of one kind of replicas."""

    failed: int | None = None


class JobStatusDoc(Record, frozen=True, rename="camel"):
    """What the controller last said, in any of the kinds' words."""

    failed: int | None = None
    restarts: int | None = None
    terminal_state: str | None = None
    completion_time: str | None = None
    conditions: tuple[Condition, ...] | None = None
    replica_statuses: dict[str, ReplicaStatus] | None = None


class JobDoc(Record, frozen=True):
    """One object that runs pods, of any kind."""

    metadata: Meta
    spec: JobSpec = JobSpec()
    status: JobStatusDoc = JobStatusDoc()

    @property
    def is_suspended(self) -> bool:
        return bool(self.spec.suspend or (self.spec.run_policy and self.spec.run_policy.suspend))

    def holds(self, condition_types: frozenset[str]) -> Condition | None:
        """The first of these conditions that is true."""
        return next((each for each in self.status.conditions or () if each.status == "True" and each.type in condition_types), None)


class ListMeta(Record, frozen=True, rename="camel"):
    """`next_page`: more is there."""

    resource_version: str = ""
    next_page: str | None = msgspec.field(default=None, name="continue")


class PodList(Record, frozen=True):
    """One page of pods."""

    metadata: ListMeta = ListMeta()
    items: tuple[Pod, ...] | None = None


class Named(Record, frozen=True):
    """Any object, by its metadata alone."""

    metadata: Meta


class NamedList(Record, frozen=True):
    """One page of objects."""

    metadata: ListMeta = ListMeta()
    items: tuple[Named, ...] | None = None


class Details(Record, frozen=True):
    """Which object a refusal is about."""

    name: str | None = None


class Refusal(Record, frozen=True):
    """A Status object; where a group does not exist at all the answer is plain text, and all this is empty."""

    kind: str = ""
    message: str = ""
    reason: str | None = None
    details: Details | None = None


Document = TypeVar("Document", JobDoc, Pod, PodList, NamedList)


def read_object(data: bytes, kind: type[Document]) -> Document:
    """One document. Raises BadInput where it is none, or its fields are of other types than the API's."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise BadInput(f"the answer is no {kind.__name__} of Kubernetes: {plain(str(problem))}", help=_NOT_AN_API) from problem


def read_refusal(data: bytes) -> Refusal:
    """What a refusal says; an empty one where it says nothing that can be read."""
    try:
        return msgspec.json.decode(data, type=Refusal)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Refusal(message=plain(data[:_MOST_WORDS].decode(errors="replace")))


def plain(words: str | None) -> str:
    """One short line of what anybody may have written into an object."""
    line = " ".join((words or "").split())
    line = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return line if len(line) <= _MOST_WORDS else f"{line[: _MOST_WORDS - 1]}…"


def unix_s_of(stamp: str | None) -> float | None:
    """A time as the API writes it (RFC 3339, UTC); None where it is none."""
    seen = _TIME.fullmatch(stamp or "")
    if seen is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in seen.groups()[:6])
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    return calendar.timegm((year, month, day, hour, minute, second)) + float(seen[7] or 0)


_NOT_AN_API = "Does the kubeconfig name an API server of Kubernetes, and not a proxy or a login page?"
