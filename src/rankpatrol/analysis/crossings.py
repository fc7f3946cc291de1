"""Ranks that run different things at the same sequence of the same group: one skipped a call, or ran another one, or one more.

A call that one rank alone makes and one that it makes instead look the same by operation and size. Where the lines of code are recorded
they tell: a line that nobody else ever ran, with another tensor, is a branch of the program, and nobody is to blame.
"""

from collections.abc import Iterable, Iterator

import msgspec

from rankpatrol.analysis.desyncs import CONDITIONAL, UNCHANGED, Desync, Side, say_side, say_sizes, say_verb, side, users_line
from rankpatrol.analysis.knots import Holders
from rankpatrol.analysis.recordings import Column, Entries, Group, Look, Point, Signature, signature
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Collective, Frame

_ONLY_SOME = "a call that the program makes on some ranks alone looks the same; then the line is to blame, not the rank"
# What else would look the same, by kind, and by whether lines of code are recorded.
_DOUBTS = {
    (CONDITIONAL, True): "a rank that skips a call and goes on to a line that none has reached before looks the same",
    ("rank_missing_collective", True): "a condition in the program that leaves this call out on that rank looks the same",
    **dict.fromkeys(
        [("rank_missing_collective", False), ("collective_mismatch_op", False), ("collective_mismatch_shape", False)], _ONLY_SOME
    ),
}


class Crossing(Record, frozen=True, kw_only=True):
    """The first sequence of a group at which its ranks differ, and the first at which one of them still waits."""

    first: Point
    held: Point
    entered: dict[Signature, frozenset[int]]

    def majority(self) -> Signature | None:
        """What more than half of the group's members ran: members that are not seen count against it, and of two nobody is more."""
        most = max(self.entered, key=lambda each: (len(self.entered[each]), each))
        return most if 2 * len(self.entered[most]) > len(self.first.group.members) else None


def find_crossing(look: Look, holders: Holders) -> Crossing | None:
    """The first crossing of any group in which somebody waits; one that all have left behind is over, whatever it was."""
    for group in sorted({point.group for point in holders}):
        odd = _odd_sequences(look, group)
        held = [sequence for sequence in odd if Point(group, sequence) in holders]
        if held:
            first = Point(group, min(odd))
            return Crossing(first=first, held=Point(group, min(held)), entered=look.entered(first))
    return None


class Call(Record, frozen=True):
    """One collective as the program makes it: what it is, and the user's line, where that was recorded."""

    what: Signature
    line: Frame | None


Calls = dict[int, Call]


def _odd_sequences(look: Look, group: Group) -> set[int]:
    seen: dict[int, Signature] = {}
    odd: set[int] = set()
    for entries in _different(look, group, group.members):
        for sequence, entry in entries.items():
            if entry is not None and seen.setdefault(sequence, own := signature(entry)) != own:
                odd.add(sequence)
    return odd


def _different(look: Look, group: Group, ranks: Iterable[int]) -> Iterator[Entries]:
    """What these ranks ran in the group; of a rank only what the ones before it had not run just so."""
    seen: list[Column] = []
    for rank in ranks:
        tracks = look.by_rank.get(rank)
        track = tracks.tracks.get(group) if tracks else None
        if track is not None and isinstance(track.entries, Column):
            yield from _news(track.entries, seen)
        elif track is not None:
            yield track.entries


def _news(own: Column, seen: list[Column]) -> Iterable[Column]:
    for at, other in enumerate(seen):
        parts = own.beyond(other)
        if parts is not None:
            seen[at] = other.joined(parts)
            return parts
    seen.append(own)
    return (own,)


def crossed(look: Look, holders: Holders, crossing: Crossing, *, still: frozenset[int], blocked: frozenset[int]) -> Desync:
    """The crossing as a desync. It is proved where all its ranks stand unchanged and whoever waits in it is seen to wait."""
    most = crossing.majority()
    odd = frozenset().union(*(ranks for each, ranks in crossing.entered.items() if each != most)) if most else frozenset()
    waiting = frozenset(holders[crossing.held])
    entered = frozenset().union(*look.entered(crossing.held).values())
    usual, own = (_calls(look, crossing.first.group, ranks) for ranks in (crossing.entered[most] if most else (), odd))
    stand = _sides(look, holders, crossing)
    crossing = _where_lines_part(crossing, odd, usual, own)
    sides = _sides(look, holders, crossing)
    kind = _kind(crossing.first.sequence, sides, odd, usual, own)
    busy = frozenset(rank for ranks in holders.values() for rank in ranks) & blocked
    proved = entered <= still and waiting <= blocked
    by_lines = _told_by_lines(look, crossing, sides, odd, kind)
    return Desync(
        kind=kind,
        ranks=tuple(sorted(odd)) if odd and kind != CONDITIONAL else None,
        group=crossing.first.group.name,
        sequence=crossing.first.sequence,
        sides=sides if kind == CONDITIONAL else stand,
        waiting=tuple(sorted(waiting | busy)),
        sentence=_sentence(crossing, sides, odd, kind),
        reasons_for=(*dict.fromkeys(say_side(each) for each in (*sides, *stand)), *([UNCHANGED] if proved else [])),
        reasons_against=(*_unseen(crossing, entered - still), *([_DOUBTS[kind, by_lines]] if odd and (kind, by_lines) in _DOUBTS else [])),
        proved=proved,
        by_stacks=waiting - odd <= blocked,
        by_lines=by_lines,
    )


def _where_lines_part(crossing: Crossing, odd: frozenset[int], usual: Calls, own: Calls) -> Crossing:
    """The crossing, moved to where the lines of code part already: a call too many may have met another one of its kind."""
    if not odd or len(crossing.entered) != 2:
        return crossing
    first = at = crossing.first.sequence
    while _met_another(usual.get(first - 1), own.get(first - 1)):
        first -= 1
    one_more = all(own.get(sequence + 1) == usual[sequence] for sequence in range(first, at)) and _own_line(usual, own, first)
    one_less = len(odd) == 1 and all(usual.get(sequence + 1) == own[sequence] for sequence in range(first, at))
    parted = first < at and (one_more or one_less)
    return msgspec.structs.replace(crossing, first=Point(crossing.first.group, first)) if parted else crossing


def _met_another(one: Call | None, other: Call | None) -> bool:
    """True for the same operation from two lines of the program."""
    return one is not None and other is not None and one.what == other.what and None not in {one.line, other.line} and one != other


def _sides(look: Look, holders: Holders, crossing: Crossing) -> tuple[Side, ...]:
    """The largest side first."""
    held = frozenset(holders.get(crossing.first, {}))
    found = []
    for each in sorted(crossing.entered, key=lambda each: (-len(crossing.entered[each]), each)):
        ranks = crossing.entered[each]
        entry = look.entry(min(ranks), crossing.first)
        if entry is not None:
            found.append(side(ranks, crossing.first.group, entry, waits=ranks <= held))
    return tuple(found)


def _kind(at: int, sides: tuple[Side, ...], odd: frozenset[int], usual: Calls, own: Calls) -> str:
    if odd and len(sides) == 2:
        if len(odd) == 1 and _skipped(usual, own, at):
            return "rank_missing_collective"
        if (sides[0].sizes != sides[1].sizes or _met_another(usual.get(at), own.get(at))) and _own_line(usual, own, at):
            return CONDITIONAL
    return "collective_mismatch_op" if len({each.operation for each in sides}) > 1 else "collective_mismatch_shape"


def _told_by_lines(look: Look, crossing: Crossing, sides: tuple[Side, ...], odd: frozenset[int], kind: str) -> bool:
    """True where the lines are recorded, and say that whoever is named ran what is the others' line as well: no branch of its own."""
    if not all(each.line for each in sides):
        return False
    if not odd or kind in {"rank_missing_collective", CONDITIONAL}:
        return True
    usual = {call.line for call in _calls(look, crossing.first.group, sides[0].ranks).values()}
    return all((entry := look.entry(rank, crossing.first)) is not None and users_line(entry) in usual for rank in odd)


def _skipped(usual: Calls, own: Calls, at: int) -> bool:
    """True where one skipped call explains all: what the rank ran from there on is what the others ran one sequence later.

    Where the others have not come so far, it is enough that the same two calls followed each other before.
    """
    later = [(own[sequence], usual[sequence + 1]) for sequence in own if sequence >= at and sequence + 1 in usual]
    if later:
        return all(one == other for one, other in later)
    return any(usual[sequence] == usual[at] and usual.get(sequence + 1) == own[at] for sequence in usual if sequence < at)


def _own_line(usual: Calls, own: Calls, at: int) -> bool:
    """True where the odd call stands on a line of its own, that neither the others nor the rank itself ran before."""
    line = own[at].line
    before = {call.line for calls in (usual, own) for sequence, call in calls.items() if calls is usual or sequence < at}
    return line is not None and None not in before and line not in before


def _calls(look: Look, group: Group, ranks: Iterable[int]) -> Calls:
    calls = {
        sequence: _call(entry)
        for entries in _different(look, group, sorted(ranks, reverse=True))
        for sequence, entry in entries.items()
        if entry is not None
    }
    # Lines are asked of one rank that stands for all that did the same: what it no longer holds says nothing of lines.
    return {sequence: call for sequence, call in calls.items() if call.line} or calls


def _call(entry: Collective) -> Call:
    return Call(signature(entry), users_line(entry))


def _sentence(crossing: Crossing, sides: tuple[Side, ...], odd: frozenset[int], kind: str) -> str:
    at, group = crossing.first.sequence, crossing.first.group.name
    if not odd:
        said = "; ".join(f"{say_verb(each.ranks, 'runs', 'run')} {each.operation} with {say_sizes(each)}" for each in sides)
        return f"the ranks of group {group} disagree on its collective {at}, and nobody can be named: {said}"
    usual, other = sides[0], sides[1]
    if usual.operation == other.operation and kind in {"rank_missing_collective", CONDITIONAL}:
        return _sentence_of_lines(group, usual, other, kind)
    others = f"{_does(usual)} {usual.operation} {at}"
    if kind == "rank_missing_collective":
        it = "waits in" if other.waits else "ran"
        return f"rank {min(odd)} skipped {usual.operation} {at} of group {group}: it {it} {other.operation} {at} where {others}"
    if kind == CONDITIONAL:
        return f"only {say_verb(other.ranks, 'runs', 'run')} {other.operation} {at} of group {group} (at {other.line}); {others}"
    if kind == "collective_mismatch_op":
        return f"{' and '.join(f'{_does(each)} {each.operation} {at}' for each in sides[1:])} of group {group} where {others}"
    named = " and ".join(f"{_does(each)} {each.operation} {at} with {say_sizes(each)}" for each in sides[1:])
    return f"{named} in group {group} where {_does(usual)} it with {say_sizes(usual)}"


def _sentence_of_lines(group: str, usual: Side, other: Side, kind: str) -> str:
    """Of calls that met another of their kind: the lines of code alone tell them apart."""
    call = f"{usual.operation} {usual.sequence}"
    if kind == CONDITIONAL:
        return f"only {say_verb(other.ranks, 'runs', 'run')} {other.line}, whose {call} of group {group} met that of {usual.line}"
    return f"{say_ranks(other.ranks)} skipped {call} of group {group} at {usual.line}, and ran the one at {other.line} in its place"


def _does(each: Side) -> str:
    return say_verb(each.ranks, *(("waits in", "wait in") if each.waits else ("runs", "run")))


def _unseen(crossing: Crossing, changed: frozenset[int]) -> tuple[str, ...]:
    unseen = frozenset(crossing.first.group.members) - frozenset().union(*crossing.entered.values())
    doubts = []
    if unseen:
        doubts.append(f"what {say_ranks(tuple(unseen))} ran at this sequence is not recorded")
    if changed:
        doubts.append(f"two rounds that show {say_ranks(tuple(changed))} at the same sequences were not seen")
    return tuple(doubts)
