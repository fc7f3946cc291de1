"""The network adapter nearest to a GPU."""

from pathlib import Path

from machines import DGX_H100, TWO_SOCKETS

from rankpatrol.affinity.machine import Gpu, Nic
from rankpatrol.affinity.nics import NearestNics, nearest_nics
from rankpatrol.affinity.sysfs import read_gpus, read_nics
from rankpatrol.core.records import Missing

GPU = Gpu("0000:1b:00.0", "nvidia", "H100", 0, frozenset(), "/sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0")


def nic(name: str, path: str, node: int | None = 0, *, kind: str = "rdma", up: bool = True) -> Nic:
    return Nic(name, kind, node, f"/sys/devices/{path}", up)


def test_each_gpu_of_a_dgx_h100_has_its_own_adapter(tmp_path: Path) -> None:
    root = DGX_H100.write(tmp_path)
    near = [nearest_nics(gpu, read_nics(root)) for gpu in read_gpus(root)]
    assert near == [NearestNics((f"mlx5_{at}",), "under the same PCIe bridge", f"NCCL_IB_HCA==mlx5_{at}") for at in range(8)]


def test_the_bridge_comes_before_the_root_and_the_root_before_the_node() -> None:
    bridge, root = nic("a", "pci0000:15/0000:15:01.0/0000:1c:00.0"), nic("b", "pci0000:15/0000:15:02.0/0000:1d:00.0")
    node, far = nic("c", "pci0000:26/0000:26:01.0/0000:27:00.0"), nic("d", "pci0000:a0/0000:a0:01.0/0000:a1:00.0", 1)
    assert [nearest_nics(GPU, them).names for them in ((far, node, root, bridge), (far, node, root), (far, node))] == [
        ("a",),
        ("b",),
        ("c",),
    ]
    assert isinstance(nearest_nics(GPU, (far,)), Missing)


def test_an_adapter_that_is_down_is_not_advised() -> None:
    near = nic("a", "pci0000:15/0000:15:01.0/0000:1c:00.0", up=False)
    interface = nic("eth0", "pci0000:15/0000:15:02.0/0000:1d:00.0", kind="interface")
    assert nearest_nics(GPU, (near, interface)) == NearestNics(("eth0",), "at the same PCIe root", "NCCL_SOCKET_IFNAME=eth0")


def test_without_adapters_that_is_said(tmp_path: Path) -> None:
    root = TWO_SOCKETS.write(tmp_path)
    assert isinstance(nearest_nics(read_gpus(root)[0], read_nics(root)), Missing)
