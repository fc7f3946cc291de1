"""Ranks that ended with 0 while others still need them."""

from rankpatrol.analysis.ends import ENDS_BY_ITSELF, End
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Collective, RankSample, Snapshot


def left_early(snapshot: Snapshot, ends: list[End]) -> Diagnosis | None:
    """A rank that ended with 0 while others wait for a peer: with all of the rest alive or echoing, it is what they wait for."""
    gone = [end for end in ends if end.status == 0]
    if not gone or len(gone) == len(snapshot.ranks):
        return None
    scene = Scene((snapshot,))
    waiting = tuple(rank for rank in scene.victims if scene.waits[rank].by_stack)
    echoing = tuple(end.rank for end in ends if end.status != 0 and not end.first_cause())
    # A rank that still works towards its own end (a last save) is nobody's victim: then nothing is wrong yet.
    busy = [rank for rank in scene.awaited if scene.waits[rank].kind not in {WaitKind.GONE, WaitKind.UNKNOWN}]
    if not waiting and not echoing:
        return None
    if busy and not echoing:
        return None
    left = tuple(end.rank for end in gone)
    names = say_ranks(left)
    return Diagnosis(
        verdict="crash",
        cause="left_early",
        culprit_ranks=left,
        victim_ranks=tuple(sorted((*waiting, *echoing))),
        certainty=Certainty.PROVED if _is_proved(snapshot, left, waiting, echoing) else Certainty.SUPPORTED,
        sentence=f"{names} left with exit code 0 while {say_ranks((*waiting, *echoing))} still needed {'it' if len(left) == 1 else 'them'}",
        reasons_for=tuple(
            f"{say_ranks(ranks)} {what}"
            for ranks, what in ((waiting, "wait for a peer"), (echoing, "ended of a closed connection"))
            if ranks
        ),
        suggested=("Look for an early return or sys.exit in the training loop of that rank",),
        not_to_be_ended=ENDS_BY_ITSELF if echoing else None,
    )


def _is_proved(snapshot: Snapshot, left: tuple[int, ...], waiting: tuple[int, ...], echoing: tuple[int, ...]) -> bool:
    """A live rank waits in a group that holds the departed one, or its peers' connections broke while nobody else had ended."""
    if len(left) == 1 and echoing:
        return True
    return any(set(left) & set(_pending_members(sample)) for sample in snapshot.ranks if sample.rank in waiting)


def _pending_members(sample: RankSample) -> tuple[int, ...]:
    """The global ranks of the group in which this rank's last unfinished collective stands; none where that is not recorded."""
    entry = pending(sample)
    if entry is None or isinstance(sample.marks, Missing):
        return ()
    return {group.name: group.ranks for group in sample.marks.groups}.get(entry.group, ())


def pending(sample: RankSample) -> Collective | None:
    """The collective in which a rank stands, by its recording."""
    entries = () if isinstance(sample.recording, Missing) else sample.recording.entries
    return next((entry for entry in reversed(entries) if not entry.retired and not entry.is_p2p), None)
