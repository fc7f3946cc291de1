"""The flight recorders' word on a scene: what stacks alone cannot tell, since all ranks stand in a collective."""

import msgspec

from rankpatrol.analysis.collectives import find_desync
from rankpatrol.analysis.desyncs import Desync, explain_desync
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import FlightRecording, Marks, Snapshot

# A circle of waits stands whoever began it. Who skipped a collective and who ran one under a condition look alike without code lines,
# which a recording in JSON does not hold: that verdict waits for patience, or for the lines of one rank of each side.
_CERTAIN_KINDS = frozenset({"opposite_order"})
# gloo does not record what happens inside these, and send and recv wait without a group's sequence.
_UNRECORDED = ("monitored_barrier",)
# A scrape of metrics, or a log that is shipped, goes on beside a hang.
_WITH_OUTSIDE = ("received", "sent")


def diagnose_desync(scene: Scene) -> Diagnosis | None:
    """What the recordings disagree on, where all ranks wait for each other."""
    found = _find(scene)
    if found is None:
        return None
    diagnosis = explain_desync(found)
    if (at_work := _moving(scene, found) or _computes(scene, found)) is not None:
        return at_work
    if found.ranks is not None and (unheard := [rank for rank in found.ranks if scene.waits[rank].kind is WaitKind.POINT_TO_POINT]):
        return _behind_a_message(scene, diagnosis, tuple(unheard))
    certain = found.by_lines or (found.kind in _CERTAIN_KINDS and all(_stands_in_it(scene, rank) for rank in found.ranks or ()))
    if diagnosis.certainty is Certainty.PROVED and not certain:
        return msgspec.structs.replace(diagnosis, certainty=Certainty.SUPPORTED)
    return diagnosis


def _computes(scene: Scene, found: Desync) -> Diagnosis | None:
    """One of a circle may have begun a collective that it does not wait for, and compute in backward, on threads that show no frames."""
    busy = [rank for rank in found.ranks or () if not _stands_in_it(scene, rank) and scene.effort_of(rank).busy]
    if not busy:
        return None
    why = f"{found.sentence}; but {say_ranks(tuple(busy))} may compute in backward"
    return Diagnosis(verdict="undetermined", cause="unknown", victim_ranks=found.waiting, sentence=why, reasons_for=found.reasons_for)


def _stands_in_it(scene: Scene, rank: int) -> bool:
    """In `backward` a rank may have begun a collective that it does not wait for yet, and compute on threads of its own."""
    return scene.waits[rank].kind is not WaitKind.BACKWARD


def _moving(scene: Scene, found: Desync) -> Diagnosis | None:
    """Who is said to be missing gets on, or what all are in does: a large transfer, or an object that takes its time to pack."""
    ranks = found.ranks or tuple(rank for rank in scene.victims if rank not in found.waiting) or found.waiting
    done = [each for rank in ranks for each in scene.effort_of(rank).done if not each.startswith(_WITH_OUTSIDE)]
    if not done:
        return None
    return Diagnosis(
        verdict="benign_wait",
        cause="none",
        awaited_ranks=tuple(ranks),
        victim_ranks=tuple(rank for rank in found.waiting if rank not in ranks) or found.waiting,
        sentence=f"{found.sentence}; it gets on: {done[0]}",
        reasons_for=(*dict.fromkeys(done), *found.reasons_for),
        reasons_against=found.reasons_against,
    )


def _behind_a_message(scene: Scene, diagnosis: Diagnosis, ranks: tuple[int, ...]) -> Diagnosis:
    """Who is missing waits for a message of a peer, which gloo does not record: that peer has left it out, or was not to send it."""
    waits = "; ".join(f"rank {rank} {scene.waits[rank].what}" for rank in ranks)
    return msgspec.structs.replace(
        diagnosis,
        culprit_ranks=None,
        cause="p2p_mismatch",
        certainty=Certainty.SUPPORTED if diagnosis.certainty is not Certainty.SUSPECTED else Certainty.SUSPECTED,
        sentence=f"{diagnosis.sentence}; {waits} for a message that no peer sends or takes: a send and a recv do not match",
        reasons_against=("which peer left it out is not recorded",),
        suggested=("Look at who was to send or take that message, and at what makes it skip it",),
    )


def ranks_to_ask_for_lines(history: tuple[Snapshot, ...]) -> tuple[int, ...]:
    """One rank of each side of a desync that lines of code would prove; none where they would not, or are recorded already."""
    scene = Scene(history)
    if scene.awaited or scene.unclear or not scene.victims:
        return ()
    found = _find(scene)
    if found is None or not found.proved or found.kind in _CERTAIN_KINDS or all(each.line for each in found.sides):
        return ()
    return tuple(sorted({min(each.ranks) for each in found.sides}))


def wants_recordings(history: tuple[Snapshot, ...]) -> bool:
    """True where a rank waits in something of which only its recording tells whether it is a collective, and none was asked for."""
    scene = Scene(history)
    return not _recordings(scene.now) and any(wait.opaque and wait.kind is WaitKind.LOCK for wait in scene.waits.values())


def recorded_reason(scene: Scene, blamed: tuple[int, ...] | None) -> tuple[str, ...]:
    """One more line for a culprit that stacks have named: the recordings name the same ranks."""
    found = _find(scene)
    return (f"flight recorder: {found.sentence}",) if found is not None and found.ranks is not None and found.ranks == blamed else ()


def _find(scene: Scene) -> Desync | None:
    now = _recordings(scene.now)
    if len(now) < 2:
        return None
    before = _recordings(scene.history[-2]) if len(scene.history) > 1 else None
    groups = {sample.rank: sample.marks.groups for sample in scene.now.ranks if isinstance(sample.marks, Marks)}
    return find_desync(before, now, groups, scene.now.world_size, _blocked(scene))


def _blocked(scene: Scene) -> frozenset[int]:
    """Ranks that wait in a recorded collective, by their stacks."""
    return frozenset(
        rank
        for rank in scene.victims
        if scene.waits[rank].by_stack
        and scene.waits[rank].kind is not WaitKind.POINT_TO_POINT
        and not scene.waits[rank].what.endswith(_UNRECORDED)
    )


def _recordings(snapshot: Snapshot) -> dict[int, FlightRecording]:
    return {sample.rank: sample.recording for sample in snapshot.ranks if isinstance(sample.recording, FlightRecording)}
