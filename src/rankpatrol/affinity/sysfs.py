"""Reads a machine's topology below a root directory: `/` for this machine, a folder for a recorded one."""

from __future__ import annotations

import os

from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.machine import Cores, Cpus, Gpu, Machine, Nic, Node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple

_PCI = "sys/bus/pci/devices"
_NODES = "sys/devices/system/node"
_CPUS = "sys/devices/system/cpu"
# PCI vendors and class prefixes of accelerators (pci.ids): 0300 and 0302 display and 3D controllers, 0380 display, 1200 processing.
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x19e5": "ascend"}
_CLASSES = {"nvidia": ("0x0300", "0x0302"), "amd": ("0x0302", "0x0380", "0x1200"), "ascend": ("0x1200",)}


def read(root: str, *names: str) -> Optional[str]:
    """A small file's text without its newline, or None where it cannot be read."""
    try:
        descriptor = os.open(os.path.join(root, *names), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, 65536).decode("utf-8", "replace").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return None


def read_cpus(root: str, *names: str) -> Cpus:
    """A file's CPU list; empty where it is not there or is none."""
    try:
        return parse_cpus(read(root, *names) or "")
    except ValueError:
        return frozenset()


def _listed(root: str, name: str) -> List[str]:
    try:
        return sorted(os.listdir(os.path.join(root, name)))
    except OSError:
        return []


def read_machine(root: str = "/") -> Machine:
    """The online nodes with their CPUs and distances."""
    online = read_cpus(root, _NODES, "online")
    if not online:
        return Machine({0: Node(0, read_cpus(root, _CPUS, "online"), True, {0: 10})})
    memory = read_cpus(root, _NODES, "has_memory")
    numbers = sorted(online)
    return Machine({number: _node(root, number, numbers, has_memory=number in memory) for number in numbers})


def _node(root: str, number: int, numbers: List[int], *, has_memory: bool) -> Node:
    folder = f"{_NODES}/node{number}"
    # One figure for each online node, in their order (Documentation/ABI/stable/sysfs-devices-node).
    words = (read(root, folder, "distance") or "").split()
    known = len(words) == len(numbers) and all(word.isdecimal() for word in words)
    distances = dict(zip(numbers, map(int, words))) if known else {}
    return Node(number, read_cpus(root, folder, "cpulist"), has_memory, distances)


def read_cores(cpus: Cpus, root: str = "/") -> Cores:
    """The physical cores and last-level caches of these CPUs; a CPU whose siblings are not told is a core of its own."""
    cores, caches = set(), set()
    for cpu in cpus:
        folder = f"{_CPUS}/cpu{cpu}"
        siblings = read_cpus(root, folder, "topology/core_cpus_list") or read_cpus(root, folder, "topology/thread_siblings_list")
        cores.add((siblings & cpus) or frozenset((cpu,)))
        shared = read_cpus(root, folder, "cache/index3/shared_cpu_list") & cpus
        if shared:
            caches.add(shared)
    return Cores(tuple(sorted(cores, key=min)), tuple(sorted(caches, key=min)))


def read_gpus(root: str = "/") -> Tuple[Gpu, ...]:
    """All accelerators, in PCI order (AMD's in the order of its driver)."""
    return _nvidia(root) or _amd(root) or _from_pci(root)


def read_gpu(address: str, root: str = "/") -> Optional[Gpu]:
    """Whatever PCI device stands at this address, or None."""
    if not os.path.isdir(os.path.join(root, _PCI, address)):
        return None
    vendor = _VENDORS.get(read(root, _PCI, address, "vendor") or "", "")
    return _gpu(root, address, vendor)


def _gpu(root: str, address: str, vendor: str) -> Gpu:
    folder = f"{_PCI}/{address}"
    return Gpu(
        address=address,
        vendor=vendor,
        model=read(root, folder, "device") or "",
        node=_node_number(read(root, folder, "numa_node")),
        local_cpus=read_cpus(root, folder, "local_cpulist"),
        path=os.path.realpath(os.path.join(root, folder)),
    )


def _served(root: str, gpu: Gpu, device: str, uuid: Optional[str]) -> Gpu:
    """A GPU that its driver lists. access(2) asks the device cgroup too, and unlike open(2) does not wake the GPU."""
    usable = os.access(os.path.join(root, device.lstrip("/")), os.R_OK | os.W_OK)
    return gpu._replace(uuid=uuid, device=device, usable=usable)


def _node_number(text: Optional[str]) -> Optional[int]:
    """-1 is the kernel's word for a firmware that does not say."""
    return int(text) if text is not None and text.isdecimal() else None


def _nvidia(root: str) -> Tuple[Gpu, ...]:
    """What the driver itself lists; needs no NVML. A container's runtime shows here only what was given to it."""
    found = []
    for name in _listed(root, "proc/driver/nvidia/gpus"):
        words = _fields(read(root, "proc/driver/nvidia/gpus", name, "information") or "")
        if words.get("GPU Excluded") == "Yes":
            continue
        uuid = words.get("GPU UUID", "")
        gpu = _gpu(root, name.lower(), "nvidia")
        gpu = gpu._replace(model=words.get("Model") or gpu.model)
        # Older drivers show question marks until the GPU has been woken once.
        found.append(_served(root, gpu, "/dev/nvidia" + words.get("Device Minor", "?"), uuid if uuid and "?" not in uuid else None))
    return tuple(sorted(found, key=_pci_order))


def _fields(text: str) -> Dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _amd(root: str) -> Tuple[Gpu, ...]:
    """KFD's nodes in its own order, which is the order of ROCm's device numbers; CPUs are nodes there as well."""
    folder = "sys/class/kfd/kfd/topology/nodes"
    found = []
    for name in sorted(filter(str.isdecimal, _listed(root, folder)), key=int):
        text = read(root, folder, name, "properties") or ""
        words = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) == 2)
        if int(words.get("simd_count", "0")) == 0:
            continue
        place, domain = int(words.get("location_id", "0")), int(words.get("domain", "0"))
        address = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        unique = int(words.get("unique_id", "0"))
        device = "/dev/dri/renderD" + words.get("drm_render_minor", "?")
        found.append(_served(root, _gpu(root, address, "amd"), device, f"GPU-{unique:016x}" if unique else None))
    return tuple(found)


def _from_pci(root: str) -> Tuple[Gpu, ...]:
    """By vendor and class alone, where no driver tells: without UUIDs, and without knowing what may be opened."""
    found = []
    for address in _listed(root, _PCI):
        vendor = _VENDORS.get(read(root, _PCI, address, "vendor") or "")
        kind = read(root, _PCI, address, "class") or ""
        if vendor and kind.startswith(_CLASSES[vendor]):
            found.append(_gpu(root, address, vendor))
    return tuple(sorted(found, key=_pci_order))


def _pci_order(gpu: Gpu) -> Tuple[int, ...]:
    words = gpu.address.replace(".", ":").split(":")
    try:
        return tuple(int(word, 16) for word in words)
    except ValueError:
        return ()


def read_nics(root: str = "/") -> Tuple[Nic, ...]:
    """RDMA devices and interfaces that stand on PCI; a virtual one has no place and is left out."""
    return tuple(_nics(root, "sys/class/infiniband", "rdma")) + tuple(_nics(root, "sys/class/net", "interface"))


def _nics(root: str, folder: str, kind: str) -> Iterable[Nic]:
    for name in _listed(root, folder):
        device = os.path.join(root, folder, name, "device")
        if not os.path.exists(os.path.join(device, "numa_node")):
            continue
        up = _rdma_up(root, folder, name) if kind == "rdma" else read(root, folder, name, "operstate") == "up"
        yield Nic(name, kind, _node_number(read(device, "numa_node")), os.path.realpath(device), up)


def _rdma_up(root: str, folder: str, name: str) -> bool:
    ports = _listed(root, f"{folder}/{name}/ports")
    return any((read(root, folder, name, "ports", port, "state") or "").startswith("4:") for port in ports)
