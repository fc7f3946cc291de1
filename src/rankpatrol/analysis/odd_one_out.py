"""All ranks stand in collectives, and nothing recorded them: what their stacks alone may suspect, and no more."""

from rankpatrol.analysis.frames import say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.snapshot import FlightRecording, Frame

# With two ranks each is as odd as the other; with three, two may well be a group of their own, which the third does not belong to.
_FEWEST = 4


def suspect_by_stacks(scene: Scene) -> Diagnosis | None:
    """One rank stands in `backward`, which every rank runs, while all others stand at one line of their own code in another collective.

    The other way round nothing is said: a rank that stands alone at a line may well be the only one that was to run it. Only ever
    suspected: a message that was lost, or parameters that one rank did not use, would look the same.
    """
    if len(scene.samples) < max(_FEWEST, scene.now.world_size) or set(scene.victims) != set(scene.samples) or _recorded(scene):
        return None
    behind = [rank for rank, wait in scene.waits.items() if wait.kind is WaitKind.BACKWARD and wait.by_stack]
    places = {_place(scene, rank) for rank in scene.samples if rank not in behind}
    if len(behind) != 1 or len(places) != 1 or (place := places.pop()) is None:
        return None
    odd = behind[0]
    others = tuple(rank for rank in scene.samples if rank != odd)
    frame, what = place
    own = scene.waits[odd].frame
    at = f" ({say_frame(own)})" if own is not None else ""
    return Diagnosis(
        verdict="hang",
        cause="rank_missing_collective",
        culprit_ranks=(odd,),
        victim_ranks=others,
        certainty=Certainty.SUSPECTED,
        sentence=(
            f"rank {odd} seems to have missed a collective: {say_ranks(others)} stand in {say_frame(frame)} ({what}), "
            f"and it is in backward{at}"
        ),
        reasons_for=(f"{len(others)} of {len(scene.samples)} ranks stand at one line of code, in a collective; rank {odd} alone does not",),
        reasons_against=(
            f"{_why_unrecorded(scene)}: a lost message, or a parameter that one rank did not use, would look the same",
            f"the line may be one that rank {odd} is not to run",
        ),
        suggested=()
        if _recordings(scene)
        else ("Start the job under `rankpatrol run`: its flight recorders prove which collective is missed",),
    )


def _recorded(scene: Scene) -> bool:
    return any(recording.entries for recording in _recordings(scene))


def _recordings(scene: Scene) -> list[FlightRecording]:
    return [sample.recording for sample in scene.now.ranks if isinstance(sample.recording, FlightRecording)]


def _why_unrecorded(scene: Scene) -> str:
    """Up to torch 2.9 gloo's collectives are not in it, and its answer is an empty one."""
    return "the flight recorders of this torch hold none of its collectives" if _recordings(scene) else "no flight recorder is at hand"


def _place(scene: Scene, rank: int) -> tuple[Frame, str] | None:
    """The line of the user's code at which a rank stands in a collective, and which."""
    wait = scene.waits[rank]
    explicit = wait.kind is WaitKind.COLLECTIVE and wait.by_stack and wait.frame is not None
    return (wait.frame, wait.what.removeprefix("waits in ")) if explicit and wait.frame is not None else None
