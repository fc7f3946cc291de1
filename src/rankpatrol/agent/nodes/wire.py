"""What the agents of one job tell each other, as bytes. Foreign bytes are typed, capped, and refused with a reason."""

import contextlib
import zlib
from typing import TypeVar

import msgspec

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import LogSample, Marks, ProcessSample, RankSample
from rankpatrol.core.starts import NextStart
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import LauncherExit, OrderedEnd, RankExit, RankPlace, ResumePoint

# Another number is another meaning of these records: such a node is told apart, not guessed at.
VERSION = 1
# 16 ranks with their loaders' stacks are 2 MB of JSON; what is larger by far is no answer of ours.
_MOST_BYTES = 256 << 20
_SMALL_BYTES = 4096
_PLAIN, _PACKED, _OFFERED = b"j", b"z", b"f"
# A broker takes messages of 1 MB (nats-server's max_payload).
MESSAGE_BYTES = 900_000
T = TypeVar("T")


class NotOurs(PatrolError):
    """What came over the bus is no word of a rankpatrol of this version."""

    help = "Run the same version of rankpatrol on every node of the job."


class Part(Record, frozen=True, kw_only=True):
    """One node's part of an attempt. `number` is the node's own count, `group` what all ranks started together have in common."""

    number: int
    group: str
    places: tuple[RankPlace, ...]
    exits: dict[int, RankExit]
    gone: tuple[int, ...]


class Light(Record, frozen=True, kw_only=True):
    """One light round over some ranks. Times of marks are of the clock of whoever holds this record."""

    activities: tuple[RankActivity, ...] = ()
    processes: dict[int, ProcessSample] = msgspec.field(default_factory=dict)
    marks: dict[int, Marks] = msgspec.field(default_factory=dict)
    logs: dict[int, LogSample] = msgspec.field(default_factory=dict)


class NodeState(Record, frozen=True, kw_only=True):
    """One node's newest word: its newest two attempts, and a light round over its ranks. Times are this node's own clocks.

    `every_s`: it means to tell the next one after so long.
    """

    version: int
    release: str
    node: str
    at_mono_s: float
    at_unix_s: float
    parts: tuple[Part, ...]
    light: Light
    ordered: OrderedEnd | None = None
    ended: LauncherExit | None = None
    paused: Pause | None = None
    every_s: float = 1.0


class _Spoken(Record, frozen=True, kw_only=True):
    version: int
    release: str


class Look(Record, frozen=True, kw_only=True):
    """Look closely at your ranks of this group; `full`: for the evidence, a copy of which stays on your disk under this name."""

    group: str
    full: bool
    name: str


class Seen(Record, frozen=True, kw_only=True):
    """The answer: the node's ranks. `kills`: the kernel's lines of processes it killed, by pid there."""

    at_mono_s: float
    ranks: tuple[RankSample, ...]
    kills: dict[int, str] = msgspec.field(default_factory=dict)


class OfRanks(Record, frozen=True, kw_only=True):
    """A question about these ranks of a group: for flight recordings, or for one native stack."""

    group: str
    ranks: tuple[int, ...]


class OfGroup(Record, frozen=True, kw_only=True):
    """An order about the ranks of one group."""

    group: str
    grace_s: float = 0.0


class StartNext(Record, frozen=True, kw_only=True):
    """How the attempt of this group starts, or, where it has none yet, the one that follows `after`.

    Times are the wall clock's of whoever says it, who sent it at `at_unix_s`.
    """

    start: NextStart
    group: str | None
    after: str | None
    at_unix_s: float | None = None


class Greeting(Record, frozen=True, kw_only=True):
    """What the judging agent says every few seconds: the newest verified checkpoint, and how the attempt that runs started.

    So whoever has not heard an order, has joined since, or must start its ranks without any word, starts them from where all others do.
    """

    newest_good: ResumePoint | None = None
    start: StartNext | None = None


class Ended(Record, frozen=True, kw_only=True):
    """What came of an order to end (schedulers.port.EndReport)."""

    ended: tuple[int, ...] = ()
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    beyond: dict[int, str] = msgspec.field(default_factory=dict)


def pack(record: object) -> bytes:
    """The record as bytes, squeezed where that is worth it."""
    raw = msgspec.json.encode(record)
    return _PLAIN + raw if len(raw) <= _SMALL_BYTES else _PACKED + zlib.compress(raw, 1)


def unpack(data: bytes, kind: type[T]) -> T:
    """The record that was packed. Raises NotOurs."""
    try:
        return msgspec.json.decode(_raw(data), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as problem:
        raise NotOurs(f"no {getattr(kind, '__name__', kind)} of ours came over the bus: {problem}") from problem


def _raw(data: bytes) -> bytes:
    if data[:1] == _PLAIN:
        return data[1:]
    if data[:1] != _PACKED:
        raise NotOurs("what came over the bus has an unknown form")
    squeezed = zlib.decompressobj()
    raw = squeezed.decompress(data[1:], _MOST_BYTES)
    if squeezed.unconsumed_tail:
        raise NotOurs(f"what came over the bus is larger than {_MOST_BYTES} bytes")
    return raw


def offer_of(name: str) -> bytes:
    """In the place of an answer: it can be fetched under this name."""
    return _OFFERED + name.encode()


def offered(data: bytes) -> str | None:
    """The name under which an answer can be fetched; None where this is the answer."""
    return data[1:].decode(errors="replace") if data[:1] == _OFFERED else None


def state_of(data: bytes) -> NodeState | Missing:
    """A node's word, or why it cannot be understood."""
    try:
        state = unpack(data, NodeState)
    except NotOurs as problem:
        return _other_version(data) or Missing(str(problem))
    return state if state.version == VERSION else _other_version(data) or state


def _other_version(data: bytes) -> Missing | None:
    """Another version's records may look otherwise, but for their beginning."""
    with contextlib.suppress(NotOurs):
        spoken = unpack(data, _Spoken)
        if spoken.version != VERSION:
            return Missing(f"rankpatrol {spoken.release[:40]} there speaks version {spoken.version}, this one {VERSION}")
    return None
