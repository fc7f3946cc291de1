"""Audits running processes on this machine: their GPU found, its place told, and their threads and memory judged by it."""

from rankpatrol.affinity import binder, kernel
from rankpatrol.affinity.audit import RankAudit, judge, used_gpus
from rankpatrol.affinity.machine import Gpu
from rankpatrol.affinity.plan import Place, place_of, told
from rankpatrol.affinity.running import RunningRank
from rankpatrol.affinity.visible import Choice


def audit_of(rank: RunningRank, ground: binder.Ground, named: Choice | None = None) -> RankAudit:
    """One rank's verdict; `named` is the GPU that a person named for it."""
    choice = named or used_gpus(rank.environment, ground.gpus, ground.word.mig, rank.seen(ground.word.users))
    return judge(rank.subject, choice, _place(choice, ground), ground.machine)


def place_on(ground: binder.Ground, gpu: Gpu) -> Place:
    """Where this GPU is, or why that is not known."""
    held = kernel.held()
    return place_of(gpu, ground.machine, told(ground.word.witness.get(gpu.address), held.cpus, held.memory_nodes))


def _place(choice: Choice, ground: binder.Ground) -> Place:
    """The one place of all the GPUs that a rank may use."""
    if not choice.gpus:
        return Place(None, "no_gpu", choice.why)
    places = [place_on(ground, gpu) for gpu in choice.gpus]
    numbers = {place.node.number if place.node else None for place in places}
    return places[0] if len(numbers) == 1 else Place(None, "several_nodes", f"{choice.why}, and they are on several nodes")
