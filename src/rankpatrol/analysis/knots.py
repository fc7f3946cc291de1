"""Which ranks can never go on: each waits for another one of them.

A rank that waits in several operations at once may be held by any of them, so it is tied only where each of them needs a tied rank.
"""

from collections.abc import Mapping

from rankpatrol.analysis.recordings import Look, Pending, Point, is_counterpart, peer_of
from rankpatrol.core.snapshot import Collective

Needs = Mapping[int, tuple[frozenset[int], ...]]
Holders = Mapping[Point, Mapping[int, Collective]]


def needs(look: Look, holders: Holders) -> Needs:
    """For each rank and each operation it has not left: the ranks without whose next step that operation cannot end."""
    absent = {point: look.absent(point) for point in holders}
    return {
        rank: tuple(_peer_needed(look, rank, each) if each.entry.is_p2p else absent[each.point()] for each in tracks.pending)
        for rank, tracks in look.by_rank.items()
    }


def _peer_needed(look: Look, rank: int, pending: Pending) -> frozenset[int]:
    peer = peer_of(pending)
    if peer is None or peer == rank or peer not in look.by_rank:
        return frozenset()
    met = any(is_counterpart(pending, its) for its in look.by_rank[peer].pending)
    return frozenset() if met else frozenset({peer})


def tied(candidates: frozenset[int], needed: Needs) -> frozenset[int]:
    """The largest set of candidates of whom each can end none of its operations before another one of the set has ended one."""
    kept = {rank for rank in candidates if needed.get(rank)}
    while loose := {rank for rank in kept if not all(ranks & kept for ranks in needed[rank])}:
        kept -= loose
    return frozenset(kept)


def innermost(knot: frozenset[int], needed: Needs) -> frozenset[int]:
    """The ranks of a knot that wait only within themselves; the rest of it waits for these. Several such sets are one answer."""
    # Ranks that wait alike reach alike: a thousand victims of one rank are one walk.
    reach = {ways: _reach(ways, knot, needed) for ways in {needed[rank] for rank in knot}}
    return frozenset(rank for rank in knot if all(rank in reach[needed[other]] for other in reach[needed[rank]]))


def _reach(start: tuple[frozenset[int], ...], knot: frozenset[int], needed: Needs) -> frozenset[int]:
    seen: frozenset[int] = frozenset()
    walked: set[tuple[frozenset[int], ...]] = set()
    ahead = {start}
    while ahead:
        ways = ahead.pop()
        walked.add(ways)
        found = frozenset().union(*ways) & knot - seen
        seen |= found
        ahead |= {needed[rank] for rank in found} - walked
    return seen
