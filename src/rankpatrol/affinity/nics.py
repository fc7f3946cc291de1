"""Which network adapter is nearest to a GPU: under the same PCIe bridge, at the same root, on the same node."""

from collections.abc import Sequence

from rankpatrol.affinity.machine import Gpu, Nic
from rankpatrol.core.records import Missing, Record

_HOW = ("on the same node", "at the same PCIe root", "under the same PCIe bridge")
# NCCL's variables (NCCL user guide, "Environment Variables").
_ADVICE = {"rdma": "NCCL_IB_HCA", "interface": "NCCL_SOCKET_IFNAME"}


class NearestNics(Record, frozen=True):
    """The adapters that are equally near and nearest, how near, and how NCCL would be told."""

    names: tuple[str, ...]
    how: str
    advice: str


def nearest_nics(gpu: Gpu, nics: Sequence[Nic]) -> NearestNics | Missing:
    """RDMA devices that are up, else interfaces that are up; Missing where none is known to be near."""
    up = [nic for nic in nics if nic.up]
    if not up:
        return Missing("no network adapter on PCI is up")
    kind = "rdma" if any(nic.kind == "rdma" for nic in up) else "interface"
    near = {nic.name: _nearness(gpu, nic) for nic in up if nic.kind == kind}
    best = max(near.values())
    if best < 0:
        return Missing(f"no network adapter is known to be on the node of {gpu.address}")
    names = tuple(name for name, nearness in near.items() if nearness == best)
    return NearestNics(names, _HOW[min(best, 2)], f"{_ADVICE[kind]}={'=' if kind == 'rdma' else ''}{','.join(names)}")


def _nearness(gpu: Gpu, nic: Nic) -> int:
    """-1 far or unknown, 0 on the node, 1 at the root, 2 and more under one bridge: the deeper the nearer."""
    shared = 0
    for ours, theirs in zip(_steps(gpu.path), _steps(nic.path), strict=False):
        if ours != theirs:
            break
        shared += 1
    if shared > 0:
        return shared
    return 0 if gpu.node is not None and gpu.node == nic.node else -1


def _steps(path: str) -> list[str]:
    """From the PCI root down to the device's parent: `…/devices/pci0000:00/0000:00:01.0/0000:01:00.0`."""
    words = path.split("/")
    start = next((at for at, word in enumerate(words) if word.startswith("pci") and ":" in word), len(words))
    return words[start:-1]
