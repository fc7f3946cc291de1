"""Which GPUs a rank sees, from its own environment, and which of them it will use."""

from __future__ import annotations

from rankpatrol.affinity.cpus import is_number
from rankpatrol.affinity.machine import Gpu
from rankpatrol.affinity.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Sequence, Tuple

# Where each launcher writes a rank's place on its node: (local rank, ranks on the node).
LOCAL_RANKS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # torchrun
    ("LOCAL_RANK", "LOCAL_SIZE"),  # DeepSpeed
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),  # Open MPI
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH, Intel MPI
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),  # MVAPICH2
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),  # Cray PALS
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),  # the step's own count: a batch script has the job's, and is no rank
)
# Each vendor's variables, outermost first: a later row chooses among what an earlier one left; in a row the first that is set counts
# (CUDA programming guide; ROCm's "GPU isolation techniques").
VISIBLE = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    "ascend": (("ASCEND_RT_VISIBLE_DEVICES",),),
}


class LocalRank(NamedTuple):
    """A rank's place on its node; None where no launcher said."""

    rank: Optional[int]
    ranks: Optional[int]


class Seen(NamedTuple):
    """The GPUs that a rank can see, in its own order; `doubt` says why that order, or the set, is not certain."""

    gpus: Tuple[Gpu, ...]
    doubt: Optional[str] = None


class Choice(NamedTuple):
    """The GPU that a rank will use, or all that it may use, and how we know."""

    gpus: Tuple[Gpu, ...]
    why: str


def local_rank(environment: Mapping[str, str]) -> LocalRank:
    """A rank's place on its node, by the first launcher that says it."""
    known, launcher = LocalRank(None, None), ""
    for rank, ranks in LOCAL_RANKS:
        if known.rank is None and is_number(environment.get(rank, "")):
            known = LocalRank(int(environment[rank]), None)
            launcher = rank
        if known.rank is not None and known.ranks is None and rank == launcher:
            # Slurm writes 8(x2) for two nodes of eight tasks, and 8,4 where they differ.
            count, _, more = environment.get(ranks, "").partition("(")
            known = LocalRank(known.rank, int(count) if is_number(count) and more.rstrip(")x0123456789") == "" else None)
    return known


def seen_gpus(environment: Mapping[str, str], gpus: Sequence[Gpu], mig: Mapping[str, str], doubt: Optional[str] = None) -> Seen:
    """The GPUs that this environment leaves visible. `mig` gives the PCI address of each MIG device's GPU, as far as it is known.

    `doubt`: why their numbers are not certain, as far as the caller knows.
    """
    usable = tuple(gpu for gpu in gpus if gpu.usable)
    if not usable:
        return Seen(())
    vendor = usable[0].vendor
    seen = Seen(usable, doubt or _order_doubt(environment, usable))
    for names in VISIBLE.get(vendor, ()):
        name = next((name for name in names if name in environment), names[0])
        seen = _narrowed(name, environment.get(name), seen, mig)
    return seen


def _order_doubt(environment: Mapping[str, str], gpus: Sequence[Gpu]) -> Optional[str]:
    """CUDA numbers the fastest first unless CUDA_DEVICE_ORDER says otherwise: with equal GPUs that is PCI order too."""
    if len(gpus) == 1:
        return None
    if any(gpu.device is None for gpu in gpus):
        return "no driver lists the GPUs here, so which of them this process was given, and under which numbers, is not known"
    if gpus[0].vendor != "nvidia" or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) == 1:
        return None
    return "the GPUs are of different models and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so their numbers are not known"


def _narrowed(name: str, text: Optional[str], seen: Seen, mig: Mapping[str, str]) -> Seen:
    if text is None:
        return seen
    found: List[Gpu] = []
    by_number = False
    for word in (word.strip() for word in text.split(",")):
        gpu = _named(word, seen.gpus, mig)
        if gpu is None:
            if word.startswith("MIG-") or (word.startswith("GPU-") and any(gpu.uuid is None for gpu in seen.gpus)):
                return Seen(seen.gpus, f"{name} names {word}, and which GPU that is only the driver knows (no NVML answer)")
            break  # CUDA sees what stands before the first word it does not know, and nothing after it
        by_number = by_number or word.isdecimal()
        found.append(gpu)
    if by_number and seen.doubt is not None:
        return seen
    return Seen(tuple(found))


def _named(word: str, gpus: Sequence[Gpu], mig: Mapping[str, str]) -> Optional[Gpu]:
    """The GPU that one word stands for: a number, a UUID or its unambiguous beginning, a MIG device."""
    if is_number(word):
        return gpus[int(word)] if int(word) < len(gpus) else None
    if word.startswith("MIG-GPU-"):  # before driver 470 a MIG device was MIG-<UUID of its GPU>/<instance>/<instance>
        word = word[4:].split("/", 1)[0]
    if word.startswith("MIG-"):
        return next((gpu for gpu in gpus if gpu.address == mig.get(word)), None)
    matching = [gpu for gpu in gpus if word and gpu.uuid is not None and gpu.uuid.startswith(word)]
    return matching[0] if len(matching) == 1 else None


def choose(seen: Seen, place: LocalRank) -> Choice:
    """The GPU a rank uses: its only one, or the local rank's among as many as there are ranks; else any of those it sees."""
    gpus = seen.gpus
    if seen.doubt is not None:
        return Choice(gpus, seen.doubt)
    if len(gpus) <= 1:
        return Choice(gpus, "the only GPU this rank sees" if gpus else "this rank sees no GPU")
    if place.rank is None:
        return Choice(gpus, f"this process sees {len(gpus)} GPUs and no launcher says which rank it is")
    if place.ranks is None or place.ranks != len(gpus):
        ranks = "an unknown number of" if place.ranks is None else str(place.ranks)
        return Choice(gpus, f"{ranks} ranks see {len(gpus)} GPUs each, so which rank uses which is not known")
    if place.rank >= len(gpus):
        return Choice(gpus, f"local rank {place.rank} of {place.ranks} is out of range")
    return Choice((gpus[place.rank],), f"visible GPU {place.rank} for local rank {place.rank}, as trainings choose")
