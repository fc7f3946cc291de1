"""A rank that stands still in user code, for a reason that is not seen."""

from rankpatrol.analysis.frames import say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene


def explain(scene: Scene, rank: int) -> Cause | None:
    """Takes every awaited rank that is alive and not known to compute."""
    wait = scene.waits[rank]
    if wait.kind is WaitKind.GONE:
        return None
    process = scene.process_of(rank)
    if wait.kind is WaitKind.COMPUTE or (process is not None and process.state == "R"):
        return Cause(verdict="undetermined", cause="unknown", rank=rank, phrase=f"rank {rank} {wait.what}", lines=0)
    reasons = [f"rank {rank} {wait.what}, and did nothing else in {len(scene.history)} looks"]
    if wait.frame is not None:
        reasons.append(f"its innermost line of user code is {say_frame(wait.frame)}")
    return Cause(
        cause="rank_blocked",
        rank=rank,
        phrase=f"rank {rank} {wait.what}",
        # The stack says where it stands, the kernel says that it waits there: two lines that can contradict each other.
        lines=int(wait.by_stack) + int(wait.call is not None),
        reasons_for=tuple(reasons),
        suggested=(f"Look at {wait.frame.file}:{wait.frame.line}",) if wait.frame else (),
        process=process,
    )
