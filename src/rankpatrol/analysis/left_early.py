"""Ranks that ended with 0 while others still need them."""

from enum import Enum

from rankpatrol.analysis.ends import ENDS_BY_ITSELF, End
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Collective, RankSample, is_pending


def left_early(scene: Scene, ends: list[End]) -> Diagnosis | None:
    """A rank that ended with 0 while others wait for a peer: with all of the rest alive or echoing, it is what they wait for.

    Ranks whose recorded groups do not hold it wait for somebody else: then it left when its part was done.
    """
    left = tuple(end.rank for end in ends if end.status == 0)
    if not left or len(left) == len(scene.samples):
        return None
    waiting = tuple(
        rank for rank in scene.victims if scene.waits[rank].by_stack and _stand_with(scene.samples[rank], left) is not Stands.WITHOUT
    )
    echoing = tuple(end for end in ends if end.status != 0 and not end.first_cause())
    closed = bool(echoing) and not any(end.failure.timed_out for end in echoing)
    if not (waiting or echoing) or (_others_awaited(scene) and not closed):
        return None
    return _left(scene, left, waiting, tuple(end.rank for end in echoing), closed=closed)


def _others_awaited(scene: Scene) -> bool:
    """A rank that still works towards its own end (a last save, a command it runs) is nobody's victim: then nothing is wrong yet."""
    return bool(scene.awaited) or any(scene.family_effort(rank) for rank in scene.unclear)


def _left(scene: Scene, left: tuple[int, ...], waiting: tuple[int, ...], echoing: tuple[int, ...], *, closed: bool) -> Diagnosis:
    victims = tuple(sorted((*waiting, *echoing)))
    # Its peers' connections broke while nobody else had ended, or a live rank waits in a group that holds it.
    proved = (len(left) == 1 and closed) or any(_stand_with(scene.samples[rank], left) is Stands.WITH for rank in waiting)
    return Diagnosis(
        verdict="crash",
        cause="left_early",
        culprit_ranks=left,
        victim_ranks=victims,
        certainty=Certainty.PROVED if proved else Certainty.SUPPORTED,
        sentence=f"{say_ranks(left)} left with exit code 0 while {say_ranks(victims)} still needed {'it' if len(left) == 1 else 'them'}",
        reasons_for=tuple(
            f"{say_ranks(ranks)} {what}"
            for ranks, what in ((waiting, "wait for a peer"), (echoing, f"ended of a {'closed connection' if closed else 'time-out'}"))
            if ranks
        ),
        suggested=("Look for an early return or sys.exit in the training loop of that rank",),
        not_to_be_ended=ENDS_BY_ITSELF if echoing else None,
    )


class Stands(Enum):
    """Whether a rank stands in a group with those that have left."""

    WITH = "with"
    WITHOUT = "without"
    NOT_RECORDED = "not recorded"


def _stand_with(sample: RankSample, left: tuple[int, ...]) -> Stands:
    """By the groups of all that it has begun and not finished; its last collective alone tells that they stand together."""
    members = {} if isinstance(sample.marks, Missing) else {group.name: set(group.ranks) for group in sample.marks.groups}
    entries = () if isinstance(sample.recording, Missing) else sample.recording.entries
    begun = [members.get(entry.group) for entry in entries if is_pending(entry)]
    last = pending(sample)
    if last is not None and members.get(last.group, set()) & set(left):
        return Stands.WITH
    known = bool(begun) and all(group is not None and not group & set(left) for group in begun)
    return Stands.WITHOUT if known else Stands.NOT_RECORDED


def pending(sample: RankSample) -> Collective | None:
    """The collective in which a rank stands, by its recording."""
    entries = () if isinstance(sample.recording, Missing) else sample.recording.entries
    return next((entry for entry in reversed(entries) if not entry.retired and not entry.is_p2p), None)
