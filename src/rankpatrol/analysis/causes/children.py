"""A rank below which another process burns CPU: it may wait for that one's work."""

from rankpatrol.analysis.causes.loader import is_loader
from rankpatrol.analysis.scene import Cause, Scene


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where a child that is no loader in a loop uses a clear share of a core. Whether it works is not known: nobody is blamed.

    A loop in a loader is shown by its Python stacks (causes/loader.py), and a loop of the rank's own by its own.
    """
    cpu = scene.children_cpu(rank)
    if cpu is None or scene.effort_of(rank).spins:
        return None
    ticks = {pid: used for pid, used in cpu.steady.items() if not _may_be_stuck_loader(scene, rank, pid)}
    if not cpu.is_much(sum(ticks.values()) + cpu.passing_ticks):
        return None
    names = {child.id.pid: child.name for child in scene.samples[rank].descendants}
    busiest = max(ticks, key=ticks.__getitem__, default=None)
    who = f"its child {busiest} ({names[busiest]})" if busiest is not None and ticks[busiest] > 0 else "a process below it"
    what = f"{(sum(ticks.values()) + cpu.passing_ticks) * 10} ms of CPU in {cpu.window_s:.0f} s"
    return Cause(
        verdict="undetermined",
        cause="unknown",
        rank=rank,
        phrase=f"rank {rank} {scene.waits[rank].what} while {who} computes",
        lines=0,
        reasons_against=(f"the processes below rank {rank} used {what}, and whether they work or loop is not seen from outside",),
    )


def _may_be_stuck_loader(scene: Scene, rank: int, pid: int) -> bool:
    seen = scene.effort_of(rank, pid)
    child = next(each for each in scene.samples[rank].descendants if each.id.pid == pid)
    return (bool(seen.spins) or seen.keeps_lock) and is_loader(scene, rank, child)
