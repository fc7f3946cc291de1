"""Where the ranks' flight recordings disagree: who is missing from a collective, who runs another one, who waits in a circle.

Recordings of a running job are not taken at one moment: only what two rounds show unchanged is more than a difference in time.
"""

from collections.abc import Mapping

from rankpatrol.analysis.crossings import crossed, find_crossing
from rankpatrol.analysis.desyncs import CONDITIONAL, UNCHANGED, Desync, say_pending, say_point, say_side, say_verb, side, users_line
from rankpatrol.analysis.knots import Holders, Needs, innermost, needs, tied
from rankpatrol.analysis.recordings import Groups, Look, Pending, Point, Round, look_at, signature
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.snapshot import Collective


def find_desync(before: Round | None, now: Round, groups: Groups, world_size: int, blocked: frozenset[int]) -> Desync | None:
    """What the recordings of now disagree on, or None. `groups` are by rank, from the probes.

    `blocked` are ranks whose stacks show them waiting in an operation that recorders record: gloo records no point-to-point. Nobody is
    named for being behind in one round alone, nor for what a wrapped ring no longer holds.
    """
    look = look_at(now, groups, world_size)
    return desync_in(look, _unchanged(look_at(before, groups, world_size), look) if before is not None else frozenset(), blocked)


def desync_in(look: Look, still: frozenset[int], blocked: frozenset[int]) -> Desync | None:
    """The same of one look, where `still` are the ranks that are known not to have moved for long enough."""
    holders = look.holders()
    crossing = find_crossing(look, holders)
    if crossing is not None:
        return crossed(look, holders, crossing, still=still, blocked=blocked)
    if not still:
        return None
    return _Seen(look, holders, still, blocked).desync()


def _unchanged(before: Look, now: Look) -> frozenset[int]:
    return frozenset(rank for rank, tracks in now.by_rank.items() if rank in before.by_rank and before.by_rank[rank].mark == tracks.mark)


class _Seen:
    """Two rounds without a crossing: who waits for whom, and whom that leads to."""

    def __init__(self, look: Look, holders: Holders, still: frozenset[int], blocked: frozenset[int]) -> None:
        self.look = look
        self.holders = holders
        self.still = still
        self.blocked = blocked
        self.needed: Needs = needs(look, holders)
        stuck = frozenset(rank for rank in still if any(self.needed[rank]))
        # Where no stack was read, an operation that is not over after two rounds is all there is to say that its rank waits.
        self.waiting = stuck & blocked if blocked else stuck

    def desync(self) -> Desync | None:
        knot = tied(self.still & self.blocked, self.needed)
        if knot:
            return self._circle(innermost(knot, self.needed), knot)
        return self._awaited() or self._unrecorded() or self._everywhere()

    def _circle(self, core: frozenset[int], knot: frozenset[int]) -> Desync:
        pending = {rank: self.look.by_rank[rank].pending[0] for rank in core}
        if any(each.entry.is_p2p for each in pending.values()):
            return self._circle_of("p2p_mismatch", None, pending, knot)
        strays = [found for rank in core if (found := self._stray(rank, pending[rank]))]
        if len(strays) == 1:
            return self._astray(*strays[0], knot)
        nameable = len(core) == 2 or all(len(frozenset().union(*self.needed[rank]) & core) == 1 for rank in core)
        return self._circle_of("opposite_order", core if nameable else None, pending, knot)

    def _stray(self, rank: int, own: Pending) -> tuple[int, Pending, Point] | None:
        """The collective that this rank alone is missing from, if at least two of those in it could have gone where this one stands."""
        for point, waiting in sorted(self.holders.items(), key=lambda item: item[0]):
            if self.look.absent(point) == {rank} and len(set(waiting) & self.waiting & set(own.group.members)) >= 2:
                return rank, own, point
        return None

    def _astray(self, rank: int, own: Pending, point: Point, knot: frozenset[int]) -> Desync:
        waiting = frozenset(self.holders[point])
        entry = self.holders[point][min(waiting)]
        usual = self._ran_before(own)
        others = say_verb(tuple(waiting), "waits", "wait")
        missed, stands = say_point(point, entry.operation), say_pending(own)
        doubt = "the others had the same choice" if usual else "nobody ran this there before: a line that is guarded by the rank looks so"
        line = side(frozenset({rank}), own.group, own.entry, waits=True).line
        at = f" (at {line})" if line else ""
        return Desync(
            kind="rank_missing_collective" if usual else CONDITIONAL,
            ranks=(rank,) if usual else None,
            group=point.group.name if usual else own.group.name,
            sequence=point.sequence if usual else own.entry.sequence,
            sides=(
                side(waiting, point.group, entry, waits=True),
                side(frozenset({rank}), own.group, own.entry, waits=True),
            ),
            waiting=tuple(sorted(knot | waiting)),
            sentence=(
                f"rank {rank} skipped {missed}: it waits in {stands} where {others} in {missed}"
                if usual
                else f"only rank {rank} runs {stands}{at}; {others} in {missed}"
            ),
            reasons_for=(f"{others} in {missed} for rank {rank}, which waits in {stands} for them", UNCHANGED, doubt),
            reasons_against=self._doubts(point),
            proved=True,
            by_stacks=True,
            by_lines=bool(line and entry.frames),
        )

    def _ran_before(self, own: Pending) -> bool:
        wanted, line = signature(own.entry), users_line(own.entry)
        return any(
            entry is not None
            and sequence != own.entry.sequence
            and signature(entry) == wanted
            and (line is None or users_line(entry) in {line, None})
            for tracks in self.look.by_rank.values()
            if (track := tracks.tracks.get(own.group))
            for sequence, entry in track.entries.items()
        )

    def _circle_of(self, kind: str, ranks: frozenset[int] | None, pending: dict[int, Pending], knot: frozenset[int]) -> Desync:
        core = frozenset(pending)
        waits = [
            f"rank {rank} waits in {say_pending(pending[rank])} for {say_ranks(tuple(frozenset().union(*self.needed[rank]) & core))}"
            for rank in sorted(core)
        ]
        first = pending[min(core)]
        unnamed = "" if ranks else ", and nobody can be named"
        return Desync(
            kind=kind,
            ranks=tuple(sorted(ranks)) if ranks else None,
            group=first.group.name,
            sequence=first.entry.sequence,
            sides=tuple(side(frozenset({rank}), each.group, each.entry, waits=True) for rank, each in sorted(pending.items())),
            waiting=tuple(sorted(knot | self.waiting)),
            sentence=f"{say_ranks(tuple(core))} wait for each other{unnamed}: {'; '.join(waits[:4])}",
            reasons_for=(*waits, UNCHANGED),
            reasons_against=() if ranks else ("which of them left the common order cannot be told from the recordings",),
            proved=True,
            by_stacks=True,
        )

    def _awaited(self) -> Desync | None:
        """The ends of all chains of waits: not proved, since whoever does not wait may still come."""
        ends = self._ends()
        if ends is None or not ends:
            return None
        hidden = ends & self.blocked
        free = ends - hidden
        point = self._point_missed_by(free or hidden)
        if point is None or (not free and any(self.look.by_rank[rank].pending for rank in hidden)):
            return None
        present = frozenset(self.holders[point]) & self.waiting
        if not free:
            return self._behind_unseen(point, present, hidden)
        fewer = len(free & self.look.absent(point)) < len(present) or len(point.group.members) == 2
        return self._missing(point, present, free, hidden) if fewer else None

    def _ends(self) -> frozenset[int] | None:
        """Ranks that the waiting ones need and that wait for none of them by their recordings; None while one of these moves."""
        ends: set[int] = set()
        for rank in self.waiting:
            ends |= frozenset().union(*self.needed[rank]) - self.waiting
        return frozenset(ends) if ends <= self.still else None

    def _point_missed_by(self, ranks: frozenset[int]) -> Point | None:
        """The collective that most ranks wait in for one of these."""
        points = [point for point in self.holders if self.look.absent(point) & ranks and set(self.holders[point]) & self.waiting]
        return min(points, key=lambda point: (-len(set(self.holders[point]) & self.waiting), point), default=None)

    def _behind_unseen(self, point: Point, present: frozenset[int], hidden: frozenset[int]) -> Desync | None:
        """All who are missing wait for a peer in something that is not recorded: nobody is named."""
        if len(present) == 1 and len(hidden) == len(point.group.members) - 1 >= 2:
            return self._only_one_runs(point, min(present), hidden)
        # A rank may as well have come between its recording and its stack, so that none is named.
        return self._missing(point, present, None, hidden)

    def _only_one_runs(self, point: Point, rank: int, absent: frozenset[int]) -> Desync:
        entry = self.holders[point][rank]
        own = side(frozenset({rank}), point.group, entry, waits=True)
        at = f" (at {own.line})" if own.line else ""
        return Desync(
            kind=CONDITIONAL,
            ranks=None,
            group=point.group.name,
            sequence=point.sequence,
            sides=(own,),
            waiting=tuple(sorted(absent | {rank})),
            sentence=f"only rank {rank} runs {say_point(point, entry.operation)}{at}; {say_verb(tuple(absent), 'waits', 'wait')} elsewhere",
            reasons_for=(say_side(own), UNCHANGED),
            reasons_against=(f"what {say_verb(tuple(absent), 'waits', 'wait')} in is not in the recordings", *self._doubts(point)),
            by_stacks=rank in self.blocked,
        )

    def _missing(self, point: Point, present: frozenset[int], named: frozenset[int] | None, hidden: frozenset[int]) -> Desync:
        entry = self.holders[point][min(present)]
        there = side(present, point.group, entry, waits=True)
        missed = say_point(point, entry.operation)
        absent = tuple(sorted((hidden if named is None else named) & self.look.absent(point)))
        place = {rank: self.look.position(rank, point.group) for rank in absent}
        last = ", ".join(f"rank {rank}'s last collective there is {at}" for rank, at in place.items() if at is not None)
        return Desync(
            kind="rank_missing_collective",
            ranks=None if named is None else tuple(sorted(named)),
            group=point.group.name,
            sequence=point.sequence,
            sides=(there,),
            waiting=tuple(sorted(self.waiting)),
            sentence=f"{say_verb(absent, 'has', 'have')} not entered {missed}, in which {say_verb(there.ranks, 'waits', 'wait')}",
            reasons_for=(say_side(there), *([last] if last else []), UNCHANGED),
            reasons_against=(
                *([f"{say_verb(tuple(hidden), 'waits', 'wait')} for a peer in something that is not recorded"] if hidden else []),
                *(["it may still come: it is not seen to wait for its peers"] if named and not named <= hidden else []),
                *self._doubts(point),
            ),
            by_stacks=present <= self.blocked,
        )

    def _unrecorded(self) -> Desync | None:
        """A collective that all recorded members wait in: whoever has no recording is missing, if it is one rank alone."""
        for point, waiting in sorted(self.holders.items(), key=lambda item: item[0]):
            unplaced = self.look.unplaced(point.group)
            if (
                not unplaced
                or len(waiting) < 2
                or frozenset(waiting) | unplaced != frozenset(point.group.members)
                or not self._stand(waiting)
            ):
                continue
            alone = len(unplaced) == 1 and not unplaced & self.blocked
            return self._maybe_missing(point, frozenset(waiting), unplaced, alone=alone)
        return None

    def _maybe_missing(self, point: Point, present: frozenset[int], unplaced: frozenset[int], *, alone: bool) -> Desync:
        there = side(present, point.group, self.holders[point][min(present)], waits=True)
        missed = say_point(point, there.operation)
        unseen = tuple(sorted(unplaced))
        return Desync(
            kind="rank_missing_collective",
            ranks=unseen if alone else None,
            group=point.group.name,
            sequence=point.sequence,
            sides=(there,),
            waiting=there.ranks,
            sentence=f"all others wait in {missed}; of {say_ranks(unseen)} no recording tells whether it came",
            reasons_for=(say_side(there), UNCHANGED),
            reasons_against=(f"no recording of {say_ranks(unseen)} tells where it is in this group",),
            by_stacks=present <= self.blocked,
        )

    def _everywhere(self) -> Desync | None:
        """A collective that every member is in and none has left."""
        for point, waiting in sorted(self.holders.items(), key=lambda item: item[0]):
            if len(waiting) < 2 or frozenset(waiting) != frozenset(point.group.members) or not self._stand(waiting):
                continue
            there = side(frozenset(waiting), point.group, self.holders[point][min(waiting)], waits=True)
            return Desync(
                kind="collective_started_everywhere",
                ranks=None,
                group=point.group.name,
                sequence=point.sequence,
                sides=(there,),
                waiting=there.ranks,
                sentence=f"all {len(there.ranks)} ranks are in {say_point(point, there.operation)} and none has left it",
                reasons_for=(say_side(there), UNCHANGED),
                reasons_against=("a large transfer looks the same while it runs",),
                by_stacks=frozenset(waiting) <= self.blocked,
            )
        return None

    def _stand(self, waiting: Mapping[int, Collective]) -> bool:
        """True where all of these stood in both rounds, and no stack shows one of them elsewhere."""
        ranks = frozenset(waiting)
        return ranks <= self.still and (not self.blocked or ranks <= self.blocked)

    def _doubts(self, point: Point) -> tuple[str, ...]:
        unplaced = self.look.unplaced(point.group)
        return (f"no recording of {say_ranks(tuple(unplaced))} tells where it is in this group",) if unplaced else ()
