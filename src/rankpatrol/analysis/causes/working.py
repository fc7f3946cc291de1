"""A rank that works while the others wait: nobody's fault, and not to be ended."""

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.phases import phase_cause
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.waits import main_thread

_CAUSES = {
    WaitKind.CHECKPOINT: "checkpoint_io_slow",
    WaitKind.COMPILE: "compile_or_jit",
    WaitKind.DATA: "slow_input",
    WaitKind.LOADING: "slow_input",
}


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where the rank or a process below it got something done since the last look."""
    done = scene.family_effort(rank)
    if not done:
        return None
    wait = scene.waits[rank]
    kind = WaitKind.CHECKPOINT if scene.is_inside(rank, WaitKind.CHECKPOINT) else wait.kind
    return Cause(
        verdict="benign_wait",
        cause=_cause(kind, _phase(scene, rank)) or ("rank0_preprocessing" if rank == 0 else "none"),
        rank=rank,
        phrase=f"rank {rank} {wait.what} and gets on: {done[0]}",
        lines=2,
        reasons_for=done,
        process=scene.process_of(rank),
    )


def _cause(kind: WaitKind, phase: str | None) -> str | None:
    """A load shows in the same files as a save: there the names of the functions above speak."""
    return phase if kind is WaitKind.CHECKPOINT and phase == "model_load" else _CAUSES.get(kind, phase)


def _phase(scene: Scene, rank: int) -> str | None:
    thread = main_thread(scene.samples[rank].stack)
    return phase_cause(thread) if thread is not None else None
