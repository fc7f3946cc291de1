"""Rings by process group, as a Look: what each rank ran in columns, and what it has not left in full."""

from array import array
from collections.abc import Mapping, Sequence

import msgspec

from rankpatrol.analysis.recordings import Column, Group, Look, Memberships, Numbers, Pending, RankTracks, Track
from rankpatrol.core.rings import Recordings, Ring
from rankpatrol.core.snapshot import Collective, is_pending


def look_at_rings(recordings: Recordings, world_size: int) -> Look:
    """The only round there is, each rank by the groups that the rings tell."""
    table = _Table(recordings.calls)
    names = {rank: {recordings.calls[number].group for number in set(ring.calls)} for rank, ring in recordings.rings.items()}
    told = Memberships(names, {rank: ring.members for rank, ring in recordings.rings.items()}, {}, world_size)
    return Look({rank: table.tracks(ring, told.of(rank)) for rank, ring in recordings.rings.items()}, world_size)


class _Table:
    """The calls by number: what is the same call but for its state, and which are not over."""

    def __init__(self, calls: Sequence[Collective]) -> None:
        self.calls = calls
        numbers: dict[Collective, int] = {}
        self.plain: list[Collective] = []
        self.plain_number: list[int] = []
        for call in calls:
            plain = msgspec.structs.replace(call, state="", retired=True, timeout_s=None)
            if plain not in numbers:
                self.plain.append(plain)
            self.plain_number.append(numbers.setdefault(plain, len(numbers)))
        self.pending = frozenset(number for number, call in enumerate(calls) if is_pending(call))

    def tracks(self, ring: Ring, groups: Mapping[str, Group]) -> RankTracks:
        used = set(ring.calls)
        columns: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in groups}
        collective = {number: columns[self.calls[number].group] for number in used if not self.calls[number].is_p2p}
        plain_number = self.plain_number
        for number, sequence in zip(ring.calls, ring.sequences, strict=True):
            if number in collective:
                sequences, numbers = collective[number]
                sequences.append(sequence)
                numbers.append(plain_number[number])
        pending = (
            [self._pending(ring, at, groups) for at, number in enumerate(ring.calls) if number in self.pending]
            if (self.pending & used)
            else []
        )
        return RankTracks({groups[name]: self._track(*column) for name, column in columns.items()}, pending, ring.status)

    def _pending(self, ring: Ring, at: int, groups: Mapping[str, Group]) -> Pending:
        call = self.calls[ring.calls[at]]
        return Pending(groups[call.group], msgspec.structs.replace(call, sequence=ring.sequences[at]))

    def _track(self, sequences: list[int], numbers: list[int]) -> Track:
        track = Track()
        if sequences and sequences == list(range(sequences[0], sequences[0] + len(sequences))):
            column: Numbers = array("I", numbers)
            track.entries, track.last = Column(sequences[0], column, self.plain), sequences[-1]
            return track
        for sequence, number in zip(sequences, numbers, strict=True):
            track.add(msgspec.structs.replace(self.plain[number], sequence=sequence))
        return track
