"""A rank stopped by SIGSTOP, or held by a debugger, Python's own among them."""

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene


def explain(scene: Scene, rank: int) -> Cause | None:
    """State T is the kernel's own word; a traced rank is somebody's work, and nobody is blamed for it."""
    wait = scene.waits[rank]
    if wait.kind is WaitKind.TRACED:
        return Cause(verdict="benign_wait", cause="none", rank=rank, phrase=f"rank {rank} {wait.what}", lines=1)
    if wait.kind is not WaitKind.STOPPED:
        return None
    return Cause(
        cause="rank_stopped",
        rank=rank,
        phrase=f"rank {rank} {wait.what}",
        lines=2,
        reasons_for=(f"the kernel shows rank {rank} in state T: a SIGSTOP or SIGTSTP reached it, and no SIGCONT",),
        suggested=(f"If it was stopped on purpose, let it go on: kill -CONT {scene.samples[rank].pid}",),
        process=scene.process_of(rank),
    )
