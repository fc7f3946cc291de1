"""One look at all ranks' flight recordings, put in order by process group and by the group's own sequence.

Record ids count the operations of all groups of one rank, so they say nothing between ranks; nor does what a wrapped ring no longer holds.
"""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeAlias, cast

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Collective, FlightRecording, ProcessGroup, is_pending

Round = dict[int, FlightRecording]
Groups = Mapping[int, tuple[ProcessGroup, ...]]
Numbers: TypeAlias = "array[int]"

_DEFAULT = "default_pg"
_UNPLACED = re.compile(r"pg_id .*")
_PEERS = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
# Operations whose tensors must be of one size on all ranks; the others may differ (root and leaves, uneven splits).
_ALIKE = frozenset({
    "all_reduce", "all_reduce_coalesced", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base",
    "all_gather_into_tensor", "reduce_scatter_tensor",
})  # fmt: skip


class Group(Record, frozen=True, order=True):
    """One process group: equal names with other members are other groups."""

    name: str
    members: tuple[int, ...]


class Point(Record, frozen=True, order=True):
    """One collective of one group."""

    group: Group
    sequence: int


class Signature(Record, frozen=True, order=True):
    """What all ranks of one collective must have in common: the operation, and for some the number of elements and their type."""

    operation: str
    elements: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()


class Pending(Record, frozen=True):
    """An operation that a rank has entered and not left."""

    group: Group
    entry: Collective

    def point(self) -> Point:
        return Point(self.group, self.entry.sequence)


class Track:
    """One rank's collectives in one group: by sequence, None where several entries share one (coalesced calls)."""

    def __init__(self) -> None:
        self.entries: Entries = {}
        self.last = 0

    def add(self, entry: Collective) -> None:
        known = cast("dict[int, Collective | None]", self.entries)
        known[entry.sequence] = None if entry.sequence in known else entry
        self.last = max(self.last, entry.sequence)

    def first(self) -> int:
        """The oldest sequence that is still recorded; 1 for none."""
        return self.entries.first if isinstance(self.entries, Column) else min(self.entries, default=1)


class Column(Mapping[int, Collective | None]):
    """The same in a column: one call number for each sequence from `first` on. Two ranks that did the same have equal bytes."""

    def __init__(self, first: int, numbers: Numbers, calls: Sequence[Collective]) -> None:
        self.first, self.numbers, self._calls = first, numbers, calls

    def __getitem__(self, sequence: int) -> Collective:
        at = sequence - self.first
        if not 0 <= at < len(self.numbers):
            raise KeyError(sequence)
        return msgspec.structs.replace(self._calls[self.numbers[at]], sequence=sequence)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + len(self.numbers)))

    def __len__(self) -> int:
        return len(self.numbers)

    def beyond(self, other: "Column") -> "tuple[Column, ...] | None":
        """What this one holds before and behind the other; None where they do not meet, or differ where they do."""
        first, end = max(self.first, other.first), min(self.end(), other.end())
        if first >= end or self._part(first, end).numbers != other._part(first, end).numbers:
            return None
        parts = (self._part(self.first, other.first), self._part(other.end(), self.end()))
        return tuple(part for part in parts if part)

    def joined(self, parts: "tuple[Column, ...]") -> "Column":
        """This one with parts that lie right before and behind it."""
        whole = self
        for part in parts:
            one, other = (part, whole) if part.first < whole.first else (whole, part)
            whole = Column(one.first, one.numbers + other.numbers, self._calls)
        return whole

    def end(self) -> int:
        return self.first + len(self.numbers)

    def _part(self, first: int, end: int) -> "Column":
        return Column(first, self.numbers[max(first - self.first, 0) : max(end - self.first, 0)], self._calls)


Entries = Mapping[int, Collective | None]


class RankTracks:
    """One rank's recording by group, with the operations it has not left, oldest first."""

    def __init__(self, tracks: Mapping[Group, Track], pending: Sequence[Pending], status: Iterable[str], mark: object = None) -> None:
        self.tracks = tracks
        self.pending = pending
        self.mark = mark
        # A ring that shows every group from its first call has lost none of them.
        self._whole = (
            any(track.last for track in tracks.values())
            and not any(map(_UNPLACED.fullmatch, status))
            and all(track.first() <= 1 for track in tracks.values())
        )

    def position(self, group: Group) -> int | None:
        """The last collective this rank entered in the group; None where its recording does not tell."""
        track = self.tracks.get(group)
        if track is not None and track.last:
            return track.last
        return 0 if self._whole else None


def tracks_of(recording: FlightRecording, groups: Mapping[str, Group]) -> RankTracks:
    """A recording by group. Its mark changes with everything that a rank enters or leaves."""
    tracks: dict[Group, Track] = {group: Track() for group in groups.values()}
    pending: list[Pending] = []
    for entry in recording.entries:
        if not entry.is_p2p:
            tracks[groups[entry.group]].add(entry)
        if is_pending(entry):
            pending.append(Pending(groups[entry.group], entry))
    last = recording.entries[-1] if recording.entries else None
    mark = (
        len(recording.entries),
        (last.group, last.sequence, last.is_p2p) if last else None,
        tuple((each.group, each.entry.sequence, each.entry.is_p2p) for each in pending),
        tuple(sorted((name, tracks[group].last) for name, group in groups.items())),
    )
    return RankTracks(tracks, pending, recording.status, mark)


class Look:
    """All ranks' recordings of one round."""

    def __init__(self, by_rank: Mapping[int, RankTracks], world_size: int) -> None:
        self.by_rank = by_rank
        self.ranks = tuple(range(world_size))

    def holders(self) -> dict[Point, dict[int, Collective]]:
        """Every collective that some rank has entered and not left, with those ranks."""
        held: dict[Point, dict[int, Collective]] = defaultdict(dict)
        for rank, tracks in self.by_rank.items():
            for each in tracks.pending:
                if not each.entry.is_p2p:
                    held[each.point()][rank] = each.entry
        return held

    def absent(self, point: Point) -> frozenset[int]:
        """Members that, by their own recordings, have not entered this collective."""
        return frozenset(
            rank for rank in point.group.members if (at := self.position(rank, point.group)) is not None and at < point.sequence
        )

    def unplaced(self, group: Group) -> frozenset[int]:
        """Members of whom no recording tells where in the group they are."""
        return frozenset(rank for rank in group.members if self.position(rank, group) is None)

    def position(self, rank: int, group: Group) -> int | None:
        tracks = self.by_rank.get(rank)
        return tracks.position(group) if tracks else None

    def entered(self, point: Point) -> dict[Signature, frozenset[int]]:
        """The members that entered this collective, by what they ran there; those whose ring no longer holds it are left out."""
        ran: dict[Signature, set[int]] = defaultdict(set)
        for rank in point.group.members:
            if (entry := self.entry(rank, point)) is not None:
                ran[signature(entry)].add(rank)
        return {each: frozenset(ranks) for each, ranks in ran.items()}

    def entry(self, rank: int, point: Point) -> Collective | None:
        """The rank's own entry of this collective, where its ring still holds it and it is the only one."""
        tracks = self.by_rank.get(rank)
        track = tracks.tracks.get(point.group) if tracks else None
        return track.entries.get(point.sequence) if track else None


def look_at(recordings: Round, groups: Groups, world_size: int) -> Look:
    """The recordings of one round, each by the groups that it and the probes tell."""
    names = {rank: {entry.group for entry in recording.entries} for rank, recording in recordings.items()}
    told = Memberships(names, {rank: each.members for rank, each in recordings.items()}, groups, world_size)
    return Look({rank: tracks_of(recording, told.of(rank)) for rank, recording in recordings.items()}, world_size)


class Memberships:
    """Which group each rank means by a name: as a probe or a recording tells, else all ranks that use the name unexplained."""

    def __init__(
        self, names: Mapping[int, set[str]], recorded: Mapping[int, Mapping[str, tuple[int, ...]]], groups: Groups, world_size: int
    ) -> None:
        self._names = names
        self._told: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        self._users: dict[str, list[int]] = defaultdict(list)
        for rank, its in sorted(names.items()):
            for name in its:
                self._users[name].append(rank)
                if members := _told_members(name, groups.get(rank, ()), recorded[rank]):
                    self._told[name].add(members)
        self._everyone = tuple(range(world_size))
        self._groups: dict[tuple[str, tuple[int, ...]], Group] = {}

    def of(self, rank: int) -> dict[str, Group]:
        """The rank's groups by the name its entries carry."""
        return {name: self._group(name, self._members(rank, name)) for name in sorted(self._names[rank])}

    def _group(self, name: str, members: tuple[int, ...]) -> Group:
        return self._groups.setdefault((name, members), Group(name, members))

    def _members(self, rank: int, name: str) -> tuple[int, ...]:
        told = [members for members in self._told[name] if rank in members]
        if len(told) == 1:
            return told[0]
        return self._everyone if name == _DEFAULT else tuple(self._users[name])


def _told_members(name: str, probed: Iterable[ProcessGroup], recorded: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Probes know a group by torch's name alone (`0`, `3`), recordings by name and description (`default_pg`, `3:tp`)."""
    plain = "0" if name == _DEFAULT else name.partition(":")[0]
    for wanted in (name, plain):
        for group in probed:
            if group.name == wanted and group.ranks:
                return tuple(sorted(group.ranks))
    return tuple(sorted(members)) if (members := recorded.get(name)) else None


def signature(entry: Collective) -> Signature:
    """What this entry's counterparts must have in common with it."""
    if entry.operation not in _ALIKE:
        return Signature(entry.operation)
    return _sized(entry.operation, entry.input_sizes, entry.input_dtypes)


@cache
def _sized(operation: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...]) -> Signature:
    return Signature(operation, tuple(math.prod(size) for size in sizes), dtypes)


def peer_of(pending: Pending) -> int | None:
    """The global rank at the other end of a `send 0->1` or `recv 1<-0`, which name ranks within their group."""
    named = _PEERS.match(pending.entry.operation)
    members = pending.group.members
    return members[int(named[3])] if named and int(named[3]) < len(members) else None


def is_counterpart(one: Pending, other: Pending) -> bool:
    """True where one sends what the other receives."""
    ends = (_PEERS.match(one.entry.operation), _PEERS.match(other.entry.operation))
    if ends[0] is None or ends[1] is None or one.group != other.group:
        return False
    return ends[0][1] != ends[1][1] and ends[0].group(2, 3) == ends[1].group(3, 2)
