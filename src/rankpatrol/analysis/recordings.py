"""One look at all ranks' flight recordings, put in order by process group and by the group's own sequence.

Record ids count the operations of all groups of one rank, so they say nothing between ranks; nor does what a wrapped ring no longer holds.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, cached_property

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Collective, FlightRecording, ProcessGroup

Round = dict[int, FlightRecording]
Groups = Mapping[int, tuple[ProcessGroup, ...]]

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
        self.entries: dict[int, Collective | None] = {}
        self.last = 0

    def add(self, entry: Collective) -> None:
        self.entries[entry.sequence] = None if entry.sequence in self.entries else entry
        self.last = max(self.last, entry.sequence)


class RankTracks:
    """One rank's recording by group, with the operations it has not left, oldest first."""

    def __init__(self, recording: FlightRecording, groups: Mapping[str, Group]) -> None:
        self.tracks: dict[Group, Track] = defaultdict(Track)
        self.pending: list[Pending] = []
        by_name = {name: self.tracks[group] for name, group in groups.items()}
        for entry in recording.entries:
            if not entry.is_p2p:
                by_name[entry.group].add(entry)
            if not entry.retired and entry.state != "completed":
                self.pending.append(Pending(groups[entry.group], entry))
        last = recording.entries[-1] if recording.entries else None
        self.mark = (
            len(recording.entries),
            (last.group, last.sequence, last.is_p2p) if last else None,
            tuple((each.group, each.entry.sequence, each.entry.is_p2p) for each in self.pending),
            tuple(sorted((name, track.last) for name, track in by_name.items())),
        )
        # A ring that shows every group from its first call has lost none of them.
        self._whole = bool(recording.entries) and not any(map(_UNPLACED.fullmatch, recording.status)) and self._from_the_first()

    def position(self, group: Group) -> int | None:
        """The last collective this rank entered in the group; None where its recording does not tell."""
        track = self.tracks.get(group)
        if track is not None and track.last:
            return track.last
        return 0 if self._whole else None

    def _from_the_first(self) -> bool:
        return all(min(track.entries, default=1) <= 1 for track in self.tracks.values())


class Look:
    """All ranks' recordings of one round."""

    def __init__(self, recordings: Round, groups: Groups, world_size: int) -> None:
        self.recordings = recordings
        self.ranks = tuple(range(world_size))
        self._memberships = Memberships(recordings, groups, world_size)

    @cached_property
    def by_rank(self) -> dict[int, RankTracks]:
        """Each recorded rank's tracks."""
        return {rank: RankTracks(recording, self._memberships.of(rank)) for rank, recording in self.recordings.items()}

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


class Memberships:
    """Which group each rank means by a name: as a probe or a recording tells, else all ranks that use the name unexplained."""

    def __init__(self, recordings: Round, groups: Groups, world_size: int) -> None:
        self._names = {rank: {entry.group for entry in recording.entries} for rank, recording in recordings.items()}
        self._told: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        self._users: dict[str, list[int]] = defaultdict(list)
        for rank, names in sorted(self._names.items()):
            for name in names:
                self._users[name].append(rank)
                if members := _told_members(name, groups.get(rank, ()), recordings[rank]):
                    self._told[name].add(members)
        self._everyone = tuple(range(world_size))

    def of(self, rank: int) -> dict[str, Group]:
        """The rank's groups by the name its entries carry."""
        return {name: Group(name, self._members(rank, name)) for name in sorted(self._names[rank])}

    def _members(self, rank: int, name: str) -> tuple[int, ...]:
        told = [members for members in self._told[name] if rank in members]
        if len(told) == 1:
            return told[0]
        return self._everyone if name == _DEFAULT else tuple(self._users[name])


def _told_members(name: str, probed: Iterable[ProcessGroup], recording: FlightRecording) -> tuple[int, ...] | None:
    """Probes know a group by torch's name alone (`0`, `3`), recordings by name and description (`default_pg`, `3:tp`)."""
    plain = "0" if name == _DEFAULT else name.partition(":")[0]
    for wanted in (name, plain):
        for group in probed:
            if group.name == wanted and group.ranks:
                return tuple(sorted(group.ranks))
    return tuple(sorted(members)) if (members := recording.members.get(name)) else None


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
