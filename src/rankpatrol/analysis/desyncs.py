"""A desync in words: what each side does, in which collective, and what speaks for and against naming anybody."""

from rankpatrol.analysis.frames import is_users, say_frame
from rankpatrol.analysis.recordings import Group, Pending, Point
from rankpatrol.analysis.scene import say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Collective, Frame

CONDITIONAL = "rank_conditional_collective"
UNCHANGED = "two rounds show the same sequences on all of these ranks"


class Side(Record, frozen=True, kw_only=True):
    """Ranks that do the same: the operation they are in or ran, its sequence and sizes, and the user's line where frames were recorded."""

    ranks: tuple[int, ...]
    group: str
    operation: str
    sequence: int
    waits: bool
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    line: str | None


class Desync(Record, frozen=True, kw_only=True):
    """Where the ranks of a group disagree. `ranks` is None where nobody may be named; `proved`: it cannot end without action.

    `waiting` are the ranks that stand in a collective; `by_stacks` says that their stacks show it too; `by_lines` that the recorded
    lines of code tell a skipped call, another one on the common line, and one under a condition apart.
    """

    kind: str
    ranks: tuple[int, ...] | None
    group: str
    sequence: int
    sides: tuple[Side, ...]
    waiting: tuple[int, ...]
    sentence: str
    reasons_for: tuple[str, ...] = ()
    reasons_against: tuple[str, ...] = ()
    proved: bool = False
    by_stacks: bool = False
    by_lines: bool = False


def explain_desync(desync: Desync, *, suggested: tuple[str, ...] = ()) -> Diagnosis:
    """The same as a diagnosis: a hang, proved, or supported where recordings and stacks agree, else no more than suspected."""
    supported = Certainty.SUPPORTED if desync.by_stacks else Certainty.SUSPECTED
    culprits = desync.ranks or ()
    return Diagnosis(
        verdict="hang",
        cause=desync.kind,
        culprit_ranks=desync.ranks,
        victim_ranks=tuple(rank for rank in desync.waiting if rank not in culprits),
        certainty=Certainty.PROVED if desync.proved else supported,
        sentence=desync.sentence,
        reasons_for=desync.reasons_for,
        reasons_against=desync.reasons_against,
        suggested=suggested,
        place=_place(desync),
    )


def _place(desync: Desync) -> str | None:
    """The line that the named ranks stand at; where a line itself is to blame, that one."""
    if desync.kind == CONDITIONAL:
        return desync.sides[-1].line
    return next((side.line for side in desync.sides if side.line and set(side.ranks) <= set(desync.ranks or ())), None)


def side(ranks: frozenset[int], group: Group, entry: Collective, *, waits: bool) -> Side:
    """What these ranks do, read from the entry of one of them."""
    frame = users_line(entry)
    return Side(
        ranks=tuple(sorted(ranks)),
        group=group.name,
        operation=entry.operation,
        sequence=entry.sequence,
        waits=waits,
        sizes=entry.input_sizes,
        dtypes=entry.input_dtypes,
        line=say_frame(frame) if frame else None,
    )


def users_line(entry: Collective) -> Frame | None:
    """The innermost frame of the user's own code that made this call."""
    return next((frame for frame in entry.frames if is_users(frame)), None)


def say_point(point: Point, operation: str) -> str:
    """A collective as a sentence names it: `all_reduce 6 of group default_pg`."""
    return f"{operation} {point.sequence} of group {point.group.name}"


def say_pending(pending: Pending) -> str:
    """An operation a rank is in: a collective, or `recv 1<-0 of group default_pg`."""
    return (
        f"{pending.entry.operation} of group {pending.group.name}"
        if pending.entry.is_p2p
        else say_point(pending.point(), pending.entry.operation)
    )


def say_sizes(each: Side) -> str:
    """Sizes and types of the tensors of one side: `[16, 4] Float`."""
    return f"{', '.join(str(list(size)) for size in each.sizes) or 'no tensor'} {' '.join(dict.fromkeys(each.dtypes))}".strip()


def say_side(each: Side) -> str:
    """One line of evidence: `ranks 0-2 wait in all_reduce 6 of group default_pg, [16, 4] Float, at step (train.py:32)`."""
    many = len(each.ranks) > 1
    verb = ("wait in" if many else "waits in") if each.waits else "ran"
    line = f", at {each.line}" if each.line else ""
    return f"{say_ranks(each.ranks)} {verb} {each.operation} {each.sequence} of group {each.group}, {say_sizes(each)}{line}"


def say_verb(ranks: tuple[int, ...], one: str, many: str) -> str:
    """Ranks with the verb in their number: `rank 3 waits`, `ranks 0-2 wait`."""
    return f"{say_ranks(ranks)} {many if len(ranks) > 1 else one}"
