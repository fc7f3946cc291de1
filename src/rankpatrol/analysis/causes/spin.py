"""A rank that burns CPU in the same place and gets nothing done."""

from rankpatrol.analysis.scene import Cause, Scene


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks once enough looks showed the same few lines and nothing done in all of them; before that nobody can tell."""
    seen = scene.effort_of(rank)
    if not seen.busy:
        return None
    wait = scene.waits[rank]
    if not seen.spins:
        return Cause(verdict="undetermined", cause="unknown", rank=rank, phrase=f"rank {rank} {wait.what}", lines=0)
    return Cause(
        cause="spin",
        rank=rank,
        phrase=f"rank {rank} {wait.what}: busy without getting anything done",
        lines=2,
        reasons_for=(f"{len(scene.history)} looks show the same frame, and it reads, writes and allocates nothing",),
        reasons_against=(f"rank {rank} uses the CPU",),
        process=scene.process_of(rank),
        quiet_since_mono_s=seen.since_mono_s,
    )
