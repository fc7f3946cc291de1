"""The flight recorders' word on a scene: what stacks alone cannot tell, since all ranks stand in a collective."""

import msgspec

from rankpatrol.analysis.collectives import find_desync
from rankpatrol.analysis.desyncs import Desync, explain_desync
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Scene
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import FlightRecording, Marks, Snapshot

# A circle of waits stands whoever began it. Who skipped a collective and who ran one under a condition look alike without code lines,
# which a recording in JSON does not hold: that verdict waits for patience, or for the lines of one rank of each side.
_CERTAIN_KINDS = frozenset({"opposite_order"})
# gloo does not record what happens inside these, and send and recv wait without a group's sequence.
_UNRECORDED = ("monitored_barrier",)


def diagnose_desync(scene: Scene) -> Diagnosis | None:
    """What the recordings disagree on, where all ranks wait for each other."""
    found = _find(scene)
    if found is None:
        return None
    diagnosis = explain_desync(found)
    if diagnosis.certainty is Certainty.PROVED and found.kind not in _CERTAIN_KINDS and not found.by_lines:
        return msgspec.structs.replace(diagnosis, certainty=Certainty.SUPPORTED)
    return diagnosis


def ranks_to_ask_for_lines(history: tuple[Snapshot, ...]) -> tuple[int, ...]:
    """One rank of each side of a desync that lines of code would prove; none where they would not, or are recorded already."""
    scene = Scene(history)
    if scene.awaited or scene.unclear or not scene.victims:
        return ()
    found = _find(scene)
    if found is None or not found.proved or found.kind in _CERTAIN_KINDS or all(each.line for each in found.sides):
        return ()
    return tuple(sorted({min(each.ranks) for each in found.sides}))


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
