"""Machines as trees of sysfs, /proc/driver and /dev, from short tables. The maps are those of public `nvidia-smi topo -m` listings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankpatrol.affinity.cpus import format_cpus, parse_cpus

A100, H100, GH200, L40 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB", "NVIDIA L40S"


@dataclass(frozen=True)
class Card:
    """One GPU; `minor` None: its device file is not given to this process."""

    address: str
    node: int
    minor: int | None
    model: str = H100
    vendor: str = "0x10de"
    bridge: str = ""

    @property
    def uuid(self) -> str:
        return f"GPU-{self.address[5:7]}000000-1111-2222-3333-{self.address[:4]}00000000"


@dataclass(frozen=True)
class Built:
    """A machine: CPUs of each node ('' for memory only), distances, cards, hyper-threads, caches, adapters."""

    name: str
    nodes: Mapping[int, str]
    cards: tuple[Card, ...] = ()
    distances: Mapping[int, str] = field(default_factory=dict)
    threads: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    nics: tuple[tuple[str, str, int, str], ...] = ()  # name, address, node, bridge
    possible: str = ""

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for cpus in self.nodes.values() for cpu in parse_cpus(cpus))

    def write(self, root: Path) -> str:
        put = Tree(root)
        nodes = root / "sys/devices/system/node"
        put(nodes / "online", format_cpus(self.nodes))
        put(nodes / "possible", self.possible or format_cpus(self.nodes))
        put(nodes / "has_cpu", format_cpus(node for node, cpus in self.nodes.items() if cpus))
        put(nodes / "has_memory", format_cpus(self.nodes))
        for node, cpus in self.nodes.items():
            put(nodes / f"node{node}/cpulist", cpus)
            put(nodes / f"node{node}/distance", self.distances.get(node) or " ".join("10" if to == node else "21" for to in self.nodes))
        put(root / "sys/devices/system/cpu/online", format_cpus(self.cpus))
        self._write_cpus(put, root)
        for card in self.cards:
            self._write_card(put, root, card)
        for name, address, node, bridge in self.nics:
            folder = self._write_pci(put, root, address, bridge, {"vendor": "0x15b3", "class": "0x020700", "numa_node": str(node)})
            put(root / f"sys/class/infiniband/{name}/ports/1/state", "4: ACTIVE")
            (root / f"sys/class/infiniband/{name}/device").symlink_to(folder)
        return str(root)

    def _write_cpus(self, put: "Tree", root: Path) -> None:
        groups = {cpu: group for group in self.threads for cpu in parse_cpus(group)}
        caches = {cpu: group for group in self.caches for cpu in parse_cpus(group)}
        sockets = {}
        for cpu in sorted(self.cpus):
            folder = root / f"sys/devices/system/cpu/cpu{cpu}"
            put(folder / "topology/thread_siblings_list", format_cpus(parse_cpus(groups.get(cpu, str(cpu))) & self.cpus))
            put(folder / "topology/physical_package_id", str(sockets.get(cpu, 0)))
            put(folder / "cache/index3/level", "3")
            put(folder / "cache/index3/type", "Unified")
            if cpu in caches:
                put(folder / "cache/index3/shared_cpu_list", caches[cpu])

    def _write_pci(self, put: "Tree", root: Path, address: str, bridge: str, words: Mapping[str, str]) -> Path:
        folder = root / f"sys/devices/pci{(bridge or address)[:7]}" / (bridge or "0000:00:01.0") / address
        node = int(words["numa_node"])
        local = self.cpus if node < 0 else parse_cpus(self.nodes[node])
        for name, value in {**words, "local_cpulist": format_cpus(local) if local else ""}.items():
            put(folder / name, value)
        link = root / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return folder

    def _write_card(self, put: "Tree", root: Path, card: Card) -> None:
        words = {
            "vendor": card.vendor,
            "device": "0x2330",
            "class": "0x120000" if card.vendor == "0x19e5" else "0x030200",
            "numa_node": str(card.node),
        }
        self._write_pci(put, root, card.address, card.bridge, words)
        if card.vendor == "0x10de":
            minor = "?" if card.minor is None else str(card.minor)
            text = (
                f"Model: \t\t {card.model}\nIRQ:   \t\t 16\nGPU UUID: \t {card.uuid}\nBus Type: \t PCIe\nBus Location: \t {card.address}\n"
            )
            put(root / f"proc/driver/nvidia/gpus/{card.address}/information", f"{text}Device Minor: \t {minor}\nGPU Excluded:\t No")
            if card.minor is not None:
                put(root / f"dev/nvidia{card.minor}", "")
        if card.vendor == "0x1002":
            number = self.cards.index(card) + len(self.nodes)
            place = int(card.address[5:7], 16) << 8
            properties = f"simd_count 440\ndomain 0\nlocation_id {place}\ndrm_render_minor {128 + number}\nunique_id {place + 1}"
            put(root / f"sys/class/kfd/kfd/topology/nodes/{number}/properties", properties)
            put(root / "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\nlocation_id 0")
            put(root / f"dev/dri/renderD{128 + number}", "")


class Tree:
    """Writes files of a tree."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def pairs(cores: int, offset: int) -> tuple[str, ...]:
    """Hyper-threads n and n + offset."""
    return tuple(f"{core},{core + offset}" for core in range(cores))


def cards(places: str, model: str = H100, **more: str) -> tuple[Card, ...]:
    """`07@3 0f@3`: bus and node, minors counted."""
    words = (word.split("@") for word in places.split())
    return tuple(Card(f"0000:{bus}:00.0", int(node), minor, model, **more) for minor, (bus, node) in enumerate(words))


BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
TWO = {0: "0-15,32-47", 1: "16-31,48-63"}
ONE_SOCKET = Built("one socket", {0: "0-31"}, cards("17@0 65@0", L40), threads=pairs(16, 16))
TWO_SOCKETS = Built("two sockets", TWO, cards("17@0 31@0 b1@1 ca@1", L40), threads=pairs(32, 32), caches=tuple(TWO.values()))
NPS4 = Built(
    "NPS4, MI250X",
    {node: f"{16 * node}-{16 * node + 15},{64 + 16 * node}-{79 + 16 * node}" for node in range(4)},
    cards("c1@3 c6@3 c9@1 ce@1 d1@0 d6@0 d9@2 de@2", "", vendor="0x1002"),
    {node: " ".join("10" if to == node else "12" for to in range(4)) for node in range(4)},
    threads=pairs(64, 64),
    caches=tuple(f"{8 * at}-{8 * at + 7},{64 + 8 * at}-{71 + 8 * at}" for at in range(8)),
)
DGX_A100 = Built(
    "DGX A100",
    {node: f"{16 * node}-{16 * node + 15},{128 + 16 * node}-{143 + 16 * node}" for node in range(8)},
    cards("07@3 0f@3 47@1 4e@1 87@7 90@7 b7@5 bd@5", A100),
    {node: " ".join("10" if to == node else "12" if to // 4 == node // 4 else "32" for to in range(8)) for node in range(8)},
    threads=pairs(128, 128),
    caches=tuple(f"{4 * at}-{4 * at + 3},{128 + 4 * at}-{131 + 4 * at}" for at in range(32)),
)
DGX_H100 = Built(
    "DGX H100",
    {0: "0-55,112-167", 1: "56-111,168-223"},
    tuple(Card(f"0000:{bus}:00.0", at // 4, at, bridge=f"0000:{bus}:01.0") for at, bus in enumerate(BUSES)),
    threads=pairs(112, 112),
    caches=("0-55,112-167", "56-111,168-223"),
    nics=tuple((f"mlx5_{at}", f"0000:{bus[0]}{'abcdef0123456789'[at]}:00.1", at // 4, f"0000:{bus}:01.0") for at, bus in enumerate(BUSES)),
)
GRACE = Built(
    "GH200, memory-only nodes",
    {0: "0-71", 1: "72-143", 2: "", 10: ""},
    (Card("0009:01:00.0", 2, 0, GH200), Card("0019:01:00.0", 10, 1, GH200)),
    {0: "10 40 80 120", 1: "40 10 120 80", 2: "80 120 10 160", 10: "120 80 160 10"},
    possible="0-17",
)
CXL = Built("CXL memory node", {**TWO, 2: ""}, cards("17@0 ca@1"), {0: "10 21 24", 1: "21 10 44", 2: "24 44 10"}, threads=pairs(32, 32))
SILENT = Built("firmware says -1", TWO, cards("17@-1 31@-1 b1@-1 ca@-1"), threads=pairs(32, 32))
OFFLINE = Built("offline CPUs", {0: "0-7,32-39", 1: "16-31,48-63"}, cards("17@0 31@0 b1@1 ca@1"), threads=pairs(32, 32))
