"""What is remembered of nodes, and what is said of them."""

from rankpatrol.core.records import Record


class NodeIncident(Record, frozen=True, kw_only=True):
    """One incident of one job, and a node whose rank was its culprit. `device` is the rank's place on the node, where it is known."""

    job: str
    incident: int
    at_unix_s: float
    node: str
    device: str
    verdict: str
    cause: str
    sentence: str


class NodeUse(Record, frozen=True, kw_only=True):
    """A job that had ranks on a node, well or not."""

    job: str
    node: str
    at_unix_s: float


class Memory(Record, frozen=True, kw_only=True):
    """All that is remembered."""

    incidents: tuple[NodeIncident, ...] = ()
    uses: tuple[NodeUse, ...] = ()


class DeviceCount(Record, frozen=True, kw_only=True):
    """How many of a node's incidents were on one of its devices."""

    device: str
    incidents: int


class NodeStory(Record, frozen=True, kw_only=True):
    """What is known of one node within the window. `lemon` says why it should be left out, or is None; `weighed` why it is not."""

    node: str
    jobs: int
    incidents: int
    hardware: int
    perhaps: int
    causes: dict[str, int]
    devices: tuple[DeviceCount, ...]
    last_unix_s: float
    lemon: str | None
    weighed: str
