"""Which rank we are, by the words of whoever started us. One row a launcher; the first that knows its rank is believed."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Tuple


class Place(NamedTuple):
    """One rank's place in its job, and who said so."""

    rank: int
    local_rank: int
    world_size: int
    said_by: str


class Words(NamedTuple):
    """The variables in which a launcher says it; the first number of `world_size` counts. Without one of `only_with` it means nothing."""

    launcher: str
    rank: str
    local_rank: str
    world_size: Tuple[str, ...]
    only_with: Tuple[str, ...] = ()


_MOST_DIGITS = 9
TORCHRUN = Words("torchrun", "RANK", "LOCAL_RANK", ("WORLD_SIZE",))
# Slurm is asked last: mpirun in a batch script hands its ranks the script's own SLURM_PROCID, 0. A batch script has no step (srun(1)).
LAUNCHERS = (
    TORCHRUN,
    Words("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    Words("PMI", "PMI_RANK", "MPI_LOCALRANKID", ("PMI_SIZE",)),
    Words("Slurm", "SLURM_PROCID", "SLURM_LOCALID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_STEP_ID", "SLURM_STEPID")),
)
# What tells a node's place among all: its own number, how many there are, how many ranks each has, and the world.
VIRTUAL = ("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
# What ranks that were started together have in common, beside their world size.
TOGETHER = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "PMI_JOBID")


def place_of(environment: Mapping[str, str], launchers: Tuple[Words, ...] = LAUNCHERS) -> Optional[Place]:
    """The place that an environment tells, or None where it tells none."""
    for words in launchers:
        rank = _number(environment, words.rank)
        if rank is None or (words.only_with and not any(environment.get(name) for name in words.only_with)):
            continue
        sizes = [size for size in (_number(environment, name) for name in words.world_size) if size is not None]
        local_rank = _number(environment, words.local_rank) or 0
        if words is TORCHRUN and local_rank == 0:
            local_rank = _behind_virtual(environment, rank)
        return Place(rank, local_rank, sizes[0] if sizes else 1, words.launcher)
    return None


def _behind_virtual(environment: Mapping[str, str], rank: int) -> int:
    """The place among its node's ranks of one that torchrun calls 0 and shows one GPU (--virtual-local-rank, from 2.10 on).

    It is known where all nodes have as many ranks; else it stays what the launcher says, 0.
    """
    node, nodes, ranks, world = (_number(environment, name) for name in VIRTUAL)
    if node is None or nodes is None or ranks is None or nodes * ranks != world or "," in environment.get("CUDA_VISIBLE_DEVICES", ","):
        return 0
    local_rank = rank - node * ranks
    return local_rank if 0 <= local_rank < ranks else 0


def _number(environment: Mapping[str, str], name: str) -> Optional[int]:
    text = environment.get(name, "")
    # Any user may start a process whose RANK is a page of digits.
    return int(text) if len(text) <= _MOST_DIGITS and text.isdigit() and text.isascii() else None
