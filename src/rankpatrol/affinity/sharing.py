"""Shares a node's physical cores among its ranks: whole cores, whole last-level caches where they divide."""

from __future__ import annotations

from rankpatrol.affinity.machine import Cores, Cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple


def share(cores: Cores, allowed: Mapping[int, Cpus]) -> Dict[int, Cpus]:
    """Each rank's CPUs, out of those allowed to it. No two ranks share a core unless there are fewer cores than ranks."""
    ranks = sorted(allowed)
    sets = {frozenset(allowed[rank]) for rank in ranks}
    usable = [core for core in cores.cores if any(core & cpus for cpus in sets)]
    if len(sets) == 1 and len(usable) >= len(ranks):
        blocks = _whole_caches(cores, usable, len(ranks)) or _blocks(usable, len(ranks))
        return {rank: _cpus(block) & allowed[rank] for rank, block in zip(ranks, blocks)}
    return _one_by_one(usable, allowed)


def _cpus(cores: Sequence[Cpus]) -> Cpus:
    return frozenset(cpu for core in cores for cpu in core)


def _blocks(cores: Sequence[Cpus], count: int) -> List[Sequence[Cpus]]:
    """Neighbouring cores, the first ranks getting one more where they do not divide."""
    each, more = divmod(len(cores), count)
    starts = [number * each + min(number, more) for number in range(count + 1)]
    return [cores[start:end] for start, end in zip(starts, starts[1:])]


def _whole_caches(cores: Cores, usable: Sequence[Cpus], count: int) -> Optional[List[Sequence[Cpus]]]:
    """As many caches for each rank as for the other, where all are of one size and cover all cores."""
    groups = [tuple(core for core in usable if core <= cache) for cache in cores.caches]
    groups = [group for group in groups if group]
    covered = sum(len(group) for group in groups) == len(usable)
    if not groups or not covered or len(groups) % count or len({len(group) for group in groups}) != 1:
        return None
    each = len(groups) // count
    return [tuple(core for group in groups[at * each : (at + 1) * each] for core in group) for at in range(count)]


def _one_by_one(cores: Sequence[Cpus], allowed: Mapping[int, Cpus]) -> Dict[int, Cpus]:
    """Ranks that may use different CPUs: one core for each first, then each further core to whoever has the fewest."""
    owner = _matched(cores, allowed)
    held: Dict[int, List[Cpus]] = {rank: [] for rank in allowed}
    for at, rank in owner.items():
        held[rank].append(cores[at])
    for at, core in enumerate(cores):
        takers = [rank for rank in sorted(allowed) if held[rank] and core & allowed[rank]]
        if at not in owner and takers:
            held[min(takers, key=lambda rank: len(held[rank]))].append(core)
    # Whoever got none shares: there are fewer cores than ranks.
    return {rank: (_cpus(held[rank]) if held[rank] else _cpus(cores)) & allowed[rank] for rank in allowed}


def _matched(cores: Sequence[Cpus], allowed: Mapping[int, Cpus]) -> Dict[int, int]:
    """A core for as many ranks as can have one of their own (augmenting paths: Kuhn 1955)."""
    owner: Dict[int, int] = {}
    wanted: Dict[int, Tuple[int, ...]] = {rank: tuple(at for at, core in enumerate(cores) if core & cpus) for rank, cpus in allowed.items()}

    def find(first: int) -> None:
        """Breadth first, without recursion: a thousand ranks must not exhaust the stack."""
        came: Dict[int, Tuple[int, Optional[int]]] = {}
        queue: List[Tuple[int, Optional[int]]] = [(first, None)]
        met: Set[int] = set()
        for rank, before in queue:
            for at in wanted[rank]:
                if at in met:
                    continue
                met.add(at)
                came[at] = (rank, before)
                if at not in owner:
                    step: Optional[int] = at
                    while step is not None:
                        owner[step], step = came[step]
                    return
                queue.append((owner[at], at))

    for rank in sorted(allowed, key=lambda rank: len(wanted[rank])):
        find(rank)
    return owner
