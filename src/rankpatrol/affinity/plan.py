"""The plan for one rank: what it is bound to, or why it is not. Nothing that cannot be said for certain is bound."""

from __future__ import annotations

from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.machine import Cores, Cpus, Gpu, Machine, Node, Witness
from rankpatrol.affinity.sharing import share
from rankpatrol.affinity.tuples import NamedTuple
from rankpatrol.affinity.visible import Choice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

# Decisions
BIND, NOTHING, REFUSED, LEFT = "bind", "nothing", "refused", "left"
# Modes, and memory policies of set_mempolicy(2)
NODE, CORE = "node", "core"
PREFERRED, STRICT, NO_MEMORY = "preferred", "strict", "none"


class Want(NamedTuple):
    """How to bind: share the node's CPUs or split its cores, and how firmly memory is held there."""

    mode: str = NODE
    memory: str = PREFERRED


class Rank(NamedTuple):
    """One rank before its start: what it may use, and which GPU it will use.

    `allowed` is its affinity (the scheduler's cpuset is in it), `memory_nodes` its Mems_allowed.
    """

    number: int
    choice: Choice
    allowed: Cpus
    memory_nodes: Cpus


class RankPlan(NamedTuple):
    """What is done for one rank, and why, in words. `code` names the reason for machines."""

    rank: int
    decision: str
    code: str
    why: str
    gpu: Optional[Gpu] = None
    node: Optional[int] = None
    cpus: Cpus = frozenset()
    memory: str = NO_MEMORY
    memory_node: Optional[int] = None
    notes: Tuple[str, ...] = ()


class Place(NamedTuple):
    """The node whose CPUs are nearest to a GPU, or (`node` None) why that is not known."""

    node: Optional[Node]
    code: str
    why: str


def plan(machine: Machine, cores: Cores, ranks: Sequence[Rank], witness: Mapping[str, Witness], want: Want) -> Tuple[RankPlan, ...]:
    """The plans of a node's ranks, in their order. `cores` counts only in core mode; `witness` is by PCI address."""
    plans = [plan_rank(machine, rank, witness, want) for rank in ranks]
    if want.mode == CORE:
        plans = _split(cores, plans)
    return tuple(plans)


def plan_rank(machine: Machine, rank: Rank, witness: Mapping[str, Witness], want: Want) -> RankPlan:
    """One rank's plan with its node's CPUs shared freely."""
    if len(machine.with_cpus()) <= 1:
        return RankPlan(rank.number, NOTHING, "one_node", "one NUMA node has all the CPUs: there is nothing to bind")
    if not rank.choice.gpus:
        return RankPlan(rank.number, NOTHING, "no_gpu", f"{rank.choice.why}: there is no node to bind it to")
    places = [place_of(gpu, machine, told(witness.get(gpu.address), rank.allowed, rank.memory_nodes)) for gpu in rank.choice.gpus]
    gpu = rank.choice.gpus[0] if len(rank.choice.gpus) == 1 else None
    unknown = next((place for place in places if place.node is None), None)
    if unknown is not None:
        return RankPlan(rank.number, REFUSED, unknown.code, unknown.why, gpu)
    nodes = sorted({place.node.number for place in places if place.node is not None})
    if len(nodes) > 1:
        return RankPlan(rank.number, REFUSED, "several_nodes", f"{rank.choice.why}, and they are on nodes {format_cpus(nodes)}")
    why = places[0].why if gpu else f"{rank.choice.why}, but all of them are on node {nodes[0]}"
    return _on_node(machine, rank, RankPlan(rank.number, BIND, "bound", why, gpu, nodes[0]), want)


def told(said: Optional[Witness], allowed: Cpus, memory_nodes: Cpus) -> Optional[Witness]:
    """NVML may cut its masks to what the asking process is allowed: one that equals all of that says nothing."""
    if said is None:
        return None
    nothing: Cpus = frozenset()
    return Witness(nothing if allowed <= said.cpus else said.cpus, nothing if memory_nodes <= said.nodes else said.nodes)


def place_of(gpu: Gpu, machine: Machine, said: Optional[Witness]) -> Place:
    """The node with CPUs that a GPU belongs to: by the firmware, confirmed or replaced by the driver; never by assumption."""
    number = gpu.node
    if number is None:
        number = _drivers_node(machine, said)
        if number is None:
            return Place(None, "node_unknown", f"the firmware does not say on which NUMA node {gpu.address} is (-1), nor does the driver")
        why = f"{gpu.address} is on node {number}, as the driver says (the firmware does not)"
    else:
        why = f"{gpu.address} is on node {number}"
    node = machine.nodes.get(number)
    if node is None:
        return Place(None, "node_offline", f"{why}, which is not online")
    if not node.cpus:
        return _nearest(node, machine, why)
    doubts = (("its local CPUs", gpu.local_cpus), ("the driver's CPUs for it", said.cpus if said else frozenset()))
    for name, cpus in doubts:
        if cpus and not cpus & node.cpus:
            return Place(None, "contradiction", f"{why}, but {name} are {format_cpus(cpus)}, and none of them is of that node")
    return Place(node, "placed", why)


def _drivers_node(machine: Machine, said: Optional[Witness]) -> Optional[int]:
    """The one node with CPUs that NVML's words agree on."""
    if said is None:
        return None
    by_cpus = {node.number for node in machine.with_cpus() if said.cpus and said.cpus <= node.cpus}
    by_memory = {node.number for node in machine.with_cpus() if node.number in said.nodes} if len(said.nodes) == 1 else set()
    agreed = by_cpus & by_memory if by_cpus and by_memory else by_cpus | by_memory
    return agreed.pop() if len(agreed) == 1 else None


def _nearest(node: Node, machine: Machine, why: str) -> Place:
    """For a node that is memory only (a GPU's own, on Grace)."""
    near: Dict[int, List[Node]] = {}
    for other in machine.with_cpus():
        if other.number in node.distances:
            near.setdefault(node.distances[other.number], []).append(other)
    closest = near[min(near)] if near else []
    if len(closest) != 1:
        told = f"nodes {format_cpus(other.number for other in closest)} are equally near" if closest else "no distances are told"
        return Place(None, "memory_only", f"{why}, which has memory but no CPUs, and {told}")
    return Place(closest[0], "placed", f"{why}, which has no CPUs; the nearest with CPUs is node {closest[0].number}")


def _on_node(machine: Machine, rank: Rank, found: RankPlan, want: Want) -> RankPlan:
    """Within what is allowed, or a finding about the allocation."""
    node = machine.nodes[found.node or 0]
    allowed = rank.allowed & machine.cpus()
    cpus = allowed & node.cpus
    held = f"this rank may use CPUs {format_cpus(allowed)} only"
    if not cpus:
        why = f"the allocation is on the wrong socket: {found.why}, and {held}, none of which is on node {node.number}"
        return found._replace(decision=REFUSED, code="wrong_socket", why=why)
    spans = sum(1 for other in machine.with_cpus() if other.cpus & allowed)
    # A handful of the node's CPUs is a worse place than all that is allowed: less than half of an even share is no bargain.
    if 2 * len(cpus) * spans < len(allowed):
        why = f"most of the allocation is on the wrong socket: {found.why}, and {held}, {len(cpus)} of which are on node {node.number}"
        return found._replace(decision=REFUSED, code="mostly_wrong_socket", why=why)
    memory, notes = want.memory, []
    if memory != NO_MEMORY and not node.has_memory:
        memory = NO_MEMORY
        notes.append(f"node {node.number} has no memory of its own: the memory policy is left alone")
    elif memory != NO_MEMORY and node.number not in rank.memory_nodes:
        memory = NO_MEMORY
        notes.append(
            f"memory of node {node.number} is not allowed here (Mems_allowed {format_cpus(rank.memory_nodes)}): the policy is left alone"
        )
    return found._replace(cpus=cpus, memory=memory, memory_node=node.number if memory != NO_MEMORY else None, notes=tuple(notes))


def _split(cores: Cores, plans: List[RankPlan]) -> List[RankPlan]:
    """Core mode: the ranks of a node get cores of their own."""
    allowed: Dict[int, Dict[int, Cpus]] = {}
    for at, made in enumerate(plans):
        if made.decision == BIND and made.node is not None:
            allowed.setdefault(made.node, {})[at] = made.cpus
    given: Dict[int, Cpus] = {}
    for on_node in allowed.values():
        given.update(share(cores, on_node))
    return [made._replace(cpus=given[at]) if at in given else made for at, made in enumerate(plans)]


def describe(made: RankPlan) -> str:
    """A plan in one sentence."""
    if made.decision == BIND:
        memory = {PREFERRED: f", memory preferred on node {made.memory_node}", STRICT: f", memory on node {made.memory_node} only"}
        return f"CPUs {format_cpus(made.cpus)} of node {made.node}{memory.get(made.memory, '')}: {made.why}"
    words = {NOTHING: "not bound", REFUSED: "not bound", LEFT: "left as it is"}
    return f"{words[made.decision]}: {made.why}"


def document(made: RankPlan) -> Dict[str, Any]:
    """A plan for machines."""
    return {
        "rank": made.rank,
        "decision": made.decision,
        "code": made.code,
        "why": made.why,
        "gpu": made.gpu.address if made.gpu else None,
        "node": made.node,
        "cpus": sorted(made.cpus),
        "memory": made.memory,
        "memory_node": made.memory_node,
        "notes": list(made.notes),
    }
