"""What a machine is made of, as far as binding goes: NUMA nodes, cores, accelerators, network adapters."""

from __future__ import annotations

from rankpatrol.affinity.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Optional, Tuple

    Cpus = FrozenSet[int]
else:
    Cpus = frozenset


class Node(NamedTuple):
    """One online NUMA node. `distances` holds the firmware's figures (10 = itself) to the other online nodes."""

    number: int
    cpus: Cpus
    has_memory: bool
    distances: Dict[int, int]


class Machine(NamedTuple):
    """The online nodes, by number. A kernel without NUMA has one node with all CPUs."""

    nodes: Dict[int, Node]

    def with_cpus(self) -> Tuple[Node, ...]:
        """The nodes on which something can run."""
        return tuple(node for _, node in sorted(self.nodes.items()) if node.cpus)

    def cpus(self) -> Cpus:
        """All online CPUs."""
        return frozenset(cpu for node in self.nodes.values() for cpu in node.cpus)


class Cores(NamedTuple):
    """Physical cores (sets of hyper-threads) and the groups that share a last-level cache."""

    cores: Tuple[Cpus, ...]
    caches: Tuple[Cpus, ...]


class Gpu(NamedTuple):
    """One accelerator at its PCI address (`0000:18:00.0`).

    `node` is None where the firmware does not say (-1). `device` is the file its driver serves it by, None where no driver lists it;
    `usable` is False where this process may not open that.
    """

    address: str
    vendor: str
    model: str
    node: Optional[int]
    local_cpus: Cpus
    path: str
    uuid: Optional[str] = None
    device: Optional[str] = None
    usable: bool = True


class Nic(NamedTuple):
    """One network adapter port group: an RDMA device or an interface, at its PCI place."""

    name: str
    kind: str
    node: Optional[int]
    path: str
    up: bool


class Witness(NamedTuple):
    """What the driver (NVML) says of one GPU's place; empty sets where it said nothing."""

    cpus: Cpus = frozenset()
    nodes: FrozenSet[int] = frozenset()


class DriverWord(NamedTuple):
    """What NVML said: witnesses by PCI address, the address of each asked-for MIG device's GPU, and (`problem`) why there is less.

    `users`: the processes that compute on each GPU, in the numbers of the initial pid namespace.
    """

    witness: Dict[str, Witness]
    mig: Dict[str, str]
    problem: Optional[str] = None
    users: Dict[str, FrozenSet[int]] = {}  # ruff: ignore[RUF012] - never written to
