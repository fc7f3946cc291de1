"""Who is right where: four rules that choose a rank's NUMA node, on the same machines, against answers written by hand.

torchrun's rule is torch's own code, run on the machine's tree. Prints the table of docs/affinity.md.
"""

import builtins
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.numa import binding

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/affinity"))
import machines

from rankpatrol.affinity import binder
from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.kernel import Held
from rankpatrol.affinity.plan import Want
from rankpatrol.affinity.visible import seen_gpus

Answer = frozenset[int] | str  # the CPUs a rank is left with, or why it does not start
FAILS = "fails"


class Case(NamedTuple):
    """`truth`: each rank's node, None where nothing may be bound. `order`: the cards as CUDA numbers them for this job."""

    name: str
    machine: machines.Built
    truth: Sequence[int | None]
    order: Sequence[int]
    environment: Mapping[str, str] = {}
    allowed: str = ""

    def cpus(self) -> frozenset[int]:
        return parse_cpus(self.allowed) if self.allowed else self.machine.cpus

    def environments(self) -> list[dict[str, str]]:
        count = str(len(self.truth))
        return [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": count, **self.environment} for rank in range(len(self.truth))]


def every(machine: machines.Built) -> range:
    return range(len(machine.cards))


SHUFFLE = (7, 2, 5, 0, 1, 6, 3, 4)
CASES = (
    Case("one socket", machines.ONE_SOCKET, (0, 0), every(machines.ONE_SOCKET)),
    Case("two sockets, 4 GPUs", machines.TWO_SOCKETS, (0, 0, 1, 1), every(machines.TWO_SOCKETS)),
    Case("NPS4, 8 MI250X dies", machines.NPS4, (3, 3, 1, 1, 0, 0, 2, 2), every(machines.NPS4)),
    Case("DGX A100", machines.DGX_A100, (3, 3, 1, 1, 7, 7, 5, 5), every(machines.DGX_A100)),
    Case("DGX H100", machines.DGX_H100, (0, 0, 0, 0, 1, 1, 1, 1), every(machines.DGX_H100)),
    Case("GPUs on memory-only nodes (Grace)", machines.GRACE, (0, 1), every(machines.GRACE)),
    Case("two sockets and a CXL memory node", machines.CXL, (0, 1), every(machines.CXL)),
    Case("firmware says -1 on two sockets", machines.SILENT, (None,) * 4, every(machines.SILENT)),
    Case("cpuset on socket 1 only", machines.TWO_SOCKETS, (None, None, 1, 1), every(machines.TWO_SOCKETS), allowed="20-31"),
    Case("half of socket 0 offline", machines.OFFLINE, (0, 0, 1, 1), every(machines.OFFLINE)),
    Case("one GPU a task (the sixth)", machines.DGX_H100, (1,), (5,), {"CUDA_VISIBLE_DEVICES": "5"}),
    Case(
        "shuffled CUDA_VISIBLE_DEVICES",
        machines.DGX_H100,
        tuple(at // 4 for at in SHUFFLE),
        SHUFFLE,
        {"CUDA_VISIBLE_DEVICES": ",".join(map(str, SHUFFLE))},
    ),
    Case(
        "a MIG device of the third GPU",
        machines.DGX_A100,
        (1,),
        (2,),
        {"CUDA_VISIBLE_DEVICES": f"MIG-{machines.DGX_A100.cards[2].uuid}/7/0"},
    ),
)


def rankpatrol(case: Case, root: str) -> list[Answer]:
    ground = binder.survey(case.environments(), root, library="libthere-is-none.so")
    held = Held(case.cpus(), frozenset(case.machine.nodes), 0)
    return [one.cpus if one.decision == "bind" else case.cpus() for one in binder.plan_job(case.environments(), held, Want(), ground)]


@contextlib.contextmanager
def torch_on(case: Case, root: str) -> Iterator[None]:
    """torch.numa.binding reads this tree, and sees these GPUs as CUDA would number them."""

    def opened(path: Any, *words: Any, **more: Any) -> Any:
        return builtins.open(root + path if str(path).startswith("/sys/") else path, *words, **more)  # ruff: ignore[PTH123] - it stands for open

    def allowed(_: int) -> set[int]:
        return set(case.cpus())

    def count() -> int:
        return len(case.order)

    def which(name: str) -> str:
        return f"/usr/bin/{name}"

    def properties(index: int) -> SimpleNamespace:
        domain, bus, device = case.machine.cards[case.order[index]].address.split(".")[0].split(":")
        return SimpleNamespace(pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(device, 16))

    with (
        mock.patch.object(binding, "open", opened, create=True),
        mock.patch.object(torch.cuda, "get_device_properties", properties),
        mock.patch.object(torch.cuda, "device_count", count),
        mock.patch.object(os, "sched_getaffinity", allowed),
        mock.patch.object(binding.shutil, "which", which),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        yield


def torchrun(case: Case, root: str) -> list[Answer]:
    answers: list[Answer] = []
    options = binding.NumaOptions(binding.AffinityMode.NODE)
    with torch_on(case, root):
        for rank in range(len(case.truth)):
            try:
                answers.append(frozenset(binding._get_validated_logical_cpus_to_bind_to(gpu_index=rank, numa_options=options)))
            except (RuntimeError, OSError) as problem:
                answers.append(f"{FAILS}: {problem}")
    return answers


def numactl(case: Case, word: str) -> Answer:
    """What `numactl --cpunodebind=WORD` leaves: it ends with an error for a word that is no node with CPUs allowed here."""
    if not word.isdecimal() or int(word) not in case.machine.nodes:
        return f"{FAILS}: numactl does not take {word!r}"
    return parse_cpus(case.machine.nodes[int(word)]) & case.cpus() or f"{FAILS}: no CPU of node {word} is allowed or there"


def nvrx(case: Case, root: str) -> list[Answer]:
    """NVRX_GPUS_PER_NUMA as its documentation says: the GPUs of the machine, evenly on its nodes with CPUs."""
    del root
    each = max(1, len(case.machine.cards) // sum(1 for cpus in case.machine.nodes.values() if cpus))
    return [numactl(case, str(rank // each)) for rank in range(len(case.truth))]


def by_bus_id(case: Case, root: str) -> list[Answer]:
    """The script's better half: nvidia-smi's bus id of GPU number LOCAL_RANK, then sysfs."""
    words = [
        Path(root, "sys/bus/pci/devices", case.machine.cards[rank].address, "numa_node").read_text() for rank in range(len(case.truth))
    ]
    return [numactl(case, word.strip()) for word in words]


def last_column(case: Case, root: str) -> list[Answer]:
    """`nvidia-smi topo -m | awk '{print $NF}'` of GPU number LOCAL_RANK, in the layout of drivers since 560: GPU NUMA ID is last."""
    del root
    nodes = [card.node for card in case.machine.cards]
    return [numactl(case, str(nodes[rank]) if not case.machine.nodes.get(nodes[rank], "x") else "N/A") for rank in range(len(case.truth))]


def last_column_of_old(case: Case, root: str) -> list[Answer]:
    """The same where NUMA Affinity is last: the node with CPUs, or all nodes where the firmware says none."""
    del root
    nodes = [card.node for card in case.machine.cards]
    near = {node: node if case.machine.nodes.get(node) else _nearest(case.machine, node) for node in nodes if node >= 0}
    return [numactl(case, str(near[nodes[rank]])) if nodes[rank] >= 0 else case.cpus() for rank in range(len(case.truth))]


def _nearest(machine: machines.Built, node: int) -> int:
    far = dict(zip(machine.nodes, map(int, machine.distances[node].split()), strict=True))
    return min((other for other, cpus in machine.nodes.items() if cpus), key=lambda other: far[other])


RULES: tuple[tuple[str, Callable[[Case, str], list[Answer]]], ...] = (
    ("rankpatrol", rankpatrol),
    ("`torchrun --numa-binding=node`", torchrun),
    ("NVRx: `local_rank // N`", nvrx),
    ("script: bus id, sysfs", by_bus_id),
    ("script: `topo -m`, last column, older drivers", last_column_of_old),
    ("the same since driver 560", last_column),
)
NVIDIA_ONLY = (by_bus_id, last_column_of_old, last_column)


def verdict(case: Case, answer: Answer, truth: int | None) -> str:
    if isinstance(answer, str):
        return FAILS
    if truth is None:
        return "right" if answer == case.cpus() else "a guess"
    right = parse_cpus(case.machine.nodes[truth]) & case.cpus()
    if answer == right:
        return "right"
    return "left unbound" if answer == case.cpus() else "wrong node"


def cell(case: Case, answers: Sequence[Answer]) -> str:
    verdicts = [verdict(case, answer, truth) for answer, truth in zip(answers, case.truth, strict=True)]
    if set(verdicts) == {"right"}:
        return "right"
    return ", ".join(f"{word} {verdicts.count(word)}/{len(verdicts)}" for word in sorted(set(verdicts)))


def main() -> None:
    print(f"torch {torch.__version__}\n")
    print("| machine | " + " | ".join(name for name, _ in RULES) + " |")
    print("|---" * (len(RULES) + 1) + "|")
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            root = case.machine.write(Path(folder))
            seen = seen_gpus(case.environment, binder.survey([{}], root, library="none").gpus, {})
            assert not seen.gpus or [case.machine.cards[at].address for at in case.order] == [gpu.address for gpu in seen.gpus]
            amd = case.machine is machines.NPS4
            cells = ["-" if amd and rule in NVIDIA_ONLY else cell(case, rule(case, root)) for _, rule in RULES]
            print(f"| {case.name} | " + " | ".join(cells) + " |")


main()
