"""Plans for the process that asks, from where it stands: inside its own cpuset, with its own environment, before it becomes the rank."""

from __future__ import annotations

from rankpatrol.affinity import kernel, sysfs
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.machine import Cores, Cpus, DriverWord, Gpu, Machine
from rankpatrol.affinity.plan import BIND, CORE, LEFT, NOTHING, REFUSED, Rank, RankPlan, Want, plan, plan_rank
from rankpatrol.affinity.tuples import NamedTuple
from rankpatrol.affinity.visible import Choice, choose, local_rank, seen_gpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Sequence, Tuple

# A table of what else moves threads or counts them: (variable, words that are harmless, what it does).
_RUNTIMES = (
    (
        "KMP_AFFINITY",
        ("disabled", "none"),
        "Intel's OpenMP places its threads itself and may leave the binding (KMP_AFFINITY=disabled stops it)",
    ),
    ("GOMP_CPU_AFFINITY", (), "GNU's OpenMP places its threads on the CPUs named there"),
    ("OMP_PLACES", (), "OpenMP places its threads itself, within the binding where it can"),
)


class Ground(NamedTuple):
    """All that a plan rests on, read once below `root`."""

    machine: Machine
    gpus: Tuple[Gpu, ...]
    word: DriverWord
    root: str = "/"


def survey(
    environments: Sequence[Mapping[str, str]], root: str = "/", *, ask_driver: bool = False, library: Optional[str] = None
) -> Ground:
    """Read the machine. The driver is asked only where it decides: a GPU's node or a MIG device's GPU is not known (or by order).

    Of another machine's tree this one's driver knows nothing; `library` names one that does.
    """
    machine = sysfs.read_machine(root)
    silent = DriverWord({}, {})
    if len(machine.with_cpus()) <= 1 and not ask_driver:
        return Ground(machine, (), silent, root)
    gpus = sysfs.read_gpus(root)
    visible = [environment.get("CUDA_VISIBLE_DEVICES", "") for environment in environments]
    can_ask = any(gpu.vendor == "nvidia" for gpu in gpus) and (root == "/" or library is not None)
    if can_ask and (ask_driver or any("MIG-" in words for words in visible) or any(gpu.node is None for gpu in gpus)):
        from rankpatrol.affinity import nvml  # ruff: ignore[PLC0415] - ranks wait for this, and few need it

        mig = nvml.mig_words(visible)
        if ask_driver or mig or any(gpu.node is None for gpu in gpus):
            return Ground(machine, gpus, nvml.ask(sorted(mig), library=library or nvml.LIBRARY), root)
    return Ground(machine, gpus, silent, root)


def decide(environment: Mapping[str, str], want: Want, parent_pid: Optional[int], root: str = "/", gpu: Optional[Gpu] = None) -> RankPlan:
    """What to do with this very process, which will become a rank. Never raises.

    Whoever bound it before, by comparison with its parent, has the last word; with None for a parent nobody is asked.
    """
    try:
        held = kernel.held()
        made = plan_this(environment, held, want, survey([environment], root), gpu)
        if made.decision == NOTHING or parent_pid is None:
            return made
        return unless_bound(made, bound_by(environment, held, kernel.affinity(parent_pid), kernel.cpuset(root)))
    except Exception as problem:  # ruff: ignore[BLE001] - whatever is odd about this machine must not keep the rank from starting
        return RankPlan(0, REFUSED, "failed", f"the machine's topology makes no sense to us ({type(problem).__name__}: {problem})")


def plan_job(environments: Sequence[Mapping[str, str]], held: kernel.Held, want: Want, ground: Ground) -> Tuple[RankPlan, ...]:
    """The plans of all ranks of this machine, each with the environment it will have, all within the same allowance."""
    ranks = [_rank(environment, held, ground) for environment in environments]
    cores = sysfs.read_cores(held.cpus, ground.root) if want.mode == CORE else Cores((), ())
    made = plan(ground.machine, cores, ranks, ground.word.witness, want)
    return tuple(_warned(one, environment) for one, environment in zip(made, environments))


def plan_this(environment: Mapping[str, str], held: kernel.Held, want: Want, ground: Ground, gpu: Optional[Gpu] = None) -> RankPlan:
    """The plan for the process that has this environment and allowance; `gpu` is the one its user named."""
    me = _rank(environment, held, ground, gpu)
    made = plan_rank(ground.machine, me, ground.word.witness, want)
    if made.decision == BIND and want.mode == CORE:
        ranks, mine = _with_the_others(environment, ground, me)
        # The cores of its own node are enough: the others' share of theirs is not asked for.
        made = plan(ground.machine, sysfs.read_cores(made.cpus, ground.root), ranks, ground.word.witness, want)[mine]
    return _warned(made, environment)


def _rank(environment: Mapping[str, str], held: kernel.Held, ground: Ground, gpu: Optional[Gpu] = None) -> Rank:
    place = local_rank(environment)
    choice = (
        choose(seen_gpus(environment, ground.gpus, ground.word.mig), place) if gpu is None else Choice((gpu,), "the GPU that was named")
    )
    return Rank(place.rank or 0, choice, held.cpus, held.memory_nodes)


def _warned(made: RankPlan, environment: Mapping[str, str]) -> RankPlan:
    return made._replace(notes=made.notes + conflicts(environment, made.cpus)) if made.decision == BIND else made


def _with_the_others(environment: Mapping[str, str], ground: Ground, me: Rank) -> Tuple[List[Rank], int]:
    """All ranks of this machine as far as they can be known from inside one, and which of them this one is.

    Where each rank sees its own GPU alone, the others are not known: every GPU may have one, and cores are kept for it.
    """
    seen, place = seen_gpus(environment, ground.gpus, ground.word.mig), local_rank(environment)
    together = seen.doubt is None and place.rank is not None and place.ranks == len(seen.gpus) > 1
    gpus = seen.gpus if together else ground.gpus
    mine = next((at for at, gpu in enumerate(gpus) if me.choice.gpus == (gpu,)), None)
    if mine is None:
        return [me], 0
    return [me if at == mine else me._replace(choice=Choice((gpu,), "")) for at, gpu in enumerate(gpus)], mine


def bound_by(environment: Mapping[str, str], held: kernel.Held, parents: Cpus, cpuset: Cpus) -> Optional[str]:
    """Who has bound this process already, in words; None where nobody has.

    An affinity that is neither the parent's nor the whole cpuset was set for this process. What is the parent's own was meant for
    the whole job, and a plan is made within it.
    """
    if held.policy not in {None, kernel.MPOL_DEFAULT}:
        return "a memory policy is set already"
    if not parents or held.cpus in {parents, cpuset}:
        return None
    who = next((name for variable, name in _BINDERS if variable in environment), "its launcher")
    return f"{who} has bound it already, to CPUs {format_cpus(held.cpus)}"


_BINDERS = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "mpirun"),
    ("MPI_LOCALRANKID", "mpirun"),
    ("SLURM_CPU_BIND_TYPE", "srun (--cpu-bind)"),
)


def unless_bound(made: RankPlan, who: Optional[str]) -> RankPlan:
    """Whoever bound the rank before us has the last word."""
    if who is None or made.decision == NOTHING:
        return made
    if made.decision == REFUSED:
        return made._replace(notes=(*made.notes, who))
    return RankPlan(made.rank, LEFT, "bound_already", who, made.gpu, made.node)


def conflicts(environment: Mapping[str, str], cpus: Cpus) -> Tuple[str, ...]:
    """What in the environment works against this binding."""
    found = []
    threads = environment.get("OMP_NUM_THREADS", "").split(",")[0]
    if threads.isdecimal() and int(threads) > len(cpus):
        found.append(f"OMP_NUM_THREADS={threads}, but the rank gets {len(cpus)} CPUs: its threads would wait for each other")
    for name, harmless, what in _RUNTIMES:
        value = environment.get(name, "")
        if value and not any(word in harmless for word in value.lower().split(",")):
            found.append(f"{name}={value}: {what}")
    return tuple(found)
