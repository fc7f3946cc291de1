"""Twelve machines, and the right plan of each rank written down by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from machines import (
    A100,
    CXL,
    DGX_A100,
    DGX_H100,
    GRACE,
    H100,
    L40,
    NPS4,
    OFFLINE,
    ONE_SOCKET,
    SILENT,
    TWO,
    TWO_SOCKETS,
    Built,
    Card,
    cards,
)

from rankpatrol.affinity import binder
from rankpatrol.affinity.cpus import format_cpus, parse_cpus
from rankpatrol.affinity.kernel import Held
from rankpatrol.affinity.machine import Witness
from rankpatrol.affinity.nvml import DriverWord
from rankpatrol.affinity.plan import CORE, NODE, RankPlan, Want


def ranks(count: int, **more: str) -> list[dict[str, str]]:
    return [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count), **more} for rank in range(count)]


def plans(
    machine: Built,
    environments: Sequence[Mapping[str, str]],
    folder: Path,
    *,
    allowed: str | None = None,
    mems: str | None = None,
    mode: str = NODE,
    word: DriverWord | None = None,
) -> tuple[RankPlan, ...]:
    root = machine.write(folder)
    ground = binder.survey(environments, root, library="libthere-is-none.so")
    if word is not None:
        ground = ground._replace(word=word)
    held = Held(parse_cpus(allowed) if allowed else machine.cpus, parse_cpus(mems) if mems else frozenset(machine.nodes), 0)
    made = binder.plan_job(environments, held, Want(mode), ground)
    # From inside one rank the plan is the same as for all of them together.
    alone = [binder.plan_this(environment, held, Want(mode), ground).cpus for environment in environments]
    assert alone == [one.cpus for one in made]
    return made


def bound(made: Sequence[RankPlan]) -> list[str]:
    """`node:CPUs` of each rank, or why it is not bound."""
    return [f"{one.node}:{format_cpus(one.cpus)}" if one.decision == "bind" else one.code for one in made]


A100_NODES = {1: "16-31,144-159", 3: "48-63,176-191", 5: "80-95,208-223", 7: "112-127,240-255"}
H100_NODES = {0: "0-55,112-167", 1: "56-111,168-223"}


def test_one_socket_has_nothing_to_bind(tmp_path: Path) -> None:
    assert bound(plans(ONE_SOCKET, ranks(2), tmp_path)) == ["one_node"] * 2


def test_two_sockets(tmp_path: Path) -> None:
    made = plans(TWO_SOCKETS, ranks(4), tmp_path)
    assert bound(made) == ["0:0-15,32-47", "0:0-15,32-47", "1:16-31,48-63", "1:16-31,48-63"]
    assert [(one.memory, one.memory_node) for one in made] == [("preferred", 0), ("preferred", 0), ("preferred", 1), ("preferred", 1)]


def test_two_sockets_by_core(tmp_path: Path) -> None:
    made = plans(TWO_SOCKETS, ranks(4), tmp_path, mode=CORE)
    assert bound(made) == ["0:0-7,32-39", "0:8-15,40-47", "1:16-23,48-55", "1:24-31,56-63"]


def test_amd_gpus_in_the_order_of_their_driver_under_nps4(tmp_path: Path) -> None:
    made = plans(NPS4, ranks(8), tmp_path, mode=CORE)
    assert bound(made) == [
        "3:48-55,112-119",
        "3:56-63,120-127",
        "1:16-23,80-87",
        "1:24-31,88-95",
        "0:0-7,64-71",
        "0:8-15,72-79",
        "2:32-39,96-103",
        "2:40-47,104-111",
    ]


def test_rocr_and_hip_choose_one_after_the_other(tmp_path: Path) -> None:
    chosen = {"ROCR_VISIBLE_DEVICES": "4,5,2,3", "HIP_VISIBLE_DEVICES": "2,0"}
    assert [one.node for one in plans(NPS4, ranks(2, **chosen), tmp_path)] == [1, 0]


def test_dgx_a100_has_its_first_gpu_on_node_3(tmp_path: Path) -> None:
    made = plans(DGX_A100, ranks(8), tmp_path)
    assert bound(made) == [f"{node}:{A100_NODES[node]}" for node in (3, 3, 1, 1, 7, 7, 5, 5)]


def test_dgx_a100_by_core_keeps_caches_whole(tmp_path: Path) -> None:
    made = plans(DGX_A100, ranks(8), tmp_path, mode=CORE)
    assert bound(made)[:4] == ["3:48-55,176-183", "3:56-63,184-191", "1:16-23,144-151", "1:24-31,152-159"]


def test_dgx_h100(tmp_path: Path) -> None:
    assert bound(plans(DGX_H100, ranks(8), tmp_path)) == [f"{node}:{H100_NODES[node]}" for node in (0, 0, 0, 0, 1, 1, 1, 1)]


def test_dgx_h100_by_core(tmp_path: Path) -> None:
    made = plans(DGX_H100, ranks(8), tmp_path, mode=CORE)
    assert bound(made)[3:5] == ["0:42-55,154-167", "1:56-69,168-181"]


def test_a_gpu_on_its_own_memory_node_belongs_to_the_nearest_cpus(tmp_path: Path) -> None:
    assert bound(plans(GRACE, ranks(2), tmp_path)) == ["0:0-71", "1:72-143"]


def test_a_memory_only_node_that_is_equally_far_from_all_cpus_is_refused(tmp_path: Path) -> None:
    machine = Built("no nearest", {**TWO, 2: ""}, cards("17@2 ca@1"), {0: "10 21 40", 1: "21 10 40", 2: "40 40 10"})
    made = plans(machine, ranks(2), tmp_path)
    assert bound(made) == ["memory_only", "1:16-31,48-63"]
    assert "nodes 0-1 are equally near" in made[0].why


def test_a_cxl_node_takes_no_rank_and_no_memory(tmp_path: Path) -> None:
    made = plans(CXL, ranks(2), tmp_path)
    assert bound(made) == ["0:0-15,32-47", "1:16-31,48-63"]
    assert [one.memory_node for one in made] == [0, 1]


def test_a_firmware_that_does_not_say_is_not_taken_for_node_0(tmp_path: Path) -> None:
    made = plans(SILENT, ranks(4), tmp_path)
    assert bound(made) == ["node_unknown"] * 4
    assert "-1" in made[0].why


def test_the_driver_may_know_what_the_firmware_does_not_say(tmp_path: Path) -> None:
    places = {card.address: Witness(nodes=frozenset([node])) for card, node in zip(SILENT.cards, (0, 0, 1, 1), strict=True)}
    made = plans(SILENT, ranks(4), tmp_path, word=DriverWord(places, {}))
    assert bound(made) == ["0:0-15,32-47", "0:0-15,32-47", "1:16-31,48-63", "1:16-31,48-63"]


def test_a_driver_that_only_echoes_our_own_cpuset_says_nothing(tmp_path: Path) -> None:
    """NVML cuts its mask to the caller's cpuset: all of a cpuset on node 1 is no proof of node 1."""
    mine = "16-31"
    places = {card.address: Witness(cpus=parse_cpus(mine), nodes=frozenset([1])) for card in SILENT.cards}
    assert bound(plans(SILENT, ranks(4), tmp_path, allowed=mine, mems="1", word=DriverWord(places, {}))) == ["node_unknown"] * 4


def test_driver_and_firmware_that_contradict_each_other_bind_nothing(tmp_path: Path) -> None:
    places = {card.address: Witness(cpus=parse_cpus("16-31,48-63")) for card in TWO_SOCKETS.cards}
    assert bound(plans(TWO_SOCKETS, ranks(4), tmp_path, word=DriverWord(places, {}))) == [
        "contradiction",
        "contradiction",
        "1:16-31,48-63",
        "1:16-31,48-63",
    ]


def test_a_cpuset_on_the_wrong_socket_is_a_finding(tmp_path: Path) -> None:
    made = plans(TWO_SOCKETS, ranks(4), tmp_path, allowed="20-31")
    assert bound(made) == ["wrong_socket", "wrong_socket", "1:20-31", "1:20-31"]
    assert "the allocation is on the wrong socket" in made[0].why


def test_a_cpuset_over_both_sockets_is_respected(tmp_path: Path) -> None:
    assert bound(plans(TWO_SOCKETS, ranks(4), tmp_path, allowed="8-23")) == ["0:8-15", "0:8-15", "1:16-23", "1:16-23"]


def test_a_handful_of_cpus_on_the_right_node_is_no_bargain(tmp_path: Path) -> None:
    """30 CPUs of node 1 and one of node 0: bound to that one, a rank and all its loader processes would share it."""
    assert bound(plans(TWO_SOCKETS, ranks(4), tmp_path, allowed="0,16-31,48-61"))[0] == "mostly_wrong_socket"


def test_memory_that_the_cpuset_forbids_is_not_asked_for(tmp_path: Path) -> None:
    made = plans(TWO_SOCKETS, ranks(4), tmp_path, mems="1")
    assert [one.memory for one in made] == ["none", "none", "preferred", "preferred"]
    assert "Mems_allowed 1" in made[0].notes[0]


def test_offline_cpus_are_nobodys(tmp_path: Path) -> None:
    assert bound(plans(OFFLINE, ranks(4), tmp_path, mode=CORE)) == ["0:0-3,32-35", "0:4-7,36-39", "1:16-23,48-55", "1:24-31,56-63"]


@pytest.mark.parametrize(("task", "node"), [(0, 0), (3, 0), (4, 1), (7, 1)])
def test_one_gpu_a_task_where_the_device_cgroup_hides_the_others(tmp_path: Path, task: int, node: int) -> None:
    """Slurm numbers each task's GPU 0, whichever it is."""
    hidden = tuple(card if card.minor == task else Card(card.address, card.node, None) for card in DGX_H100.cards)
    machine = Built("one GPU a task", DGX_H100.nodes, hidden, threads=DGX_H100.threads)
    environment = {"SLURM_LOCALID": str(task), "SLURM_STEP_TASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "0"}
    assert bound(plans(machine, [environment], tmp_path)) == [f"{node}:{H100_NODES[node]}"]


def test_one_gpu_a_task_by_visible_devices_alone(tmp_path: Path) -> None:
    each = [{"SLURM_LOCALID": str(task), "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "CUDA_VISIBLE_DEVICES": str(7 - task)} for task in range(8)]
    assert [one.node for one in plans(DGX_H100, each, tmp_path)] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_shuffled_visible_devices(tmp_path: Path) -> None:
    uuids = [card.uuid for card in DGX_H100.cards]
    order = ",".join(["7", uuids[2], uuids[5][:12], "0"])
    made = plans(DGX_H100, ranks(4, CUDA_VISIBLE_DEVICES=order), tmp_path)
    assert [(one.node, one.gpu and one.gpu.address[5:7]) for one in made] == [(1, "df"), (0, "52"), (1, "c3"), (0, "1b")]


def test_visible_devices_end_at_the_first_word_that_cuda_does_not_know(tmp_path: Path) -> None:
    made = plans(DGX_H100, ranks(1, CUDA_VISIBLE_DEVICES="5,99,0"), tmp_path)
    assert bound(made) == [f"1:{H100_NODES[1]}"]


@pytest.mark.parametrize("none", ["", "-1", "NoDevFiles", "GPU-"])
def test_a_rank_without_a_gpu_is_not_bound(tmp_path: Path, none: str) -> None:
    assert bound(plans(DGX_H100, ranks(1, CUDA_VISIBLE_DEVICES=none), tmp_path)) == ["no_gpu"]


MIG = "MIG-11111111-2222-3333-4444-555555555555"


def test_a_mig_device_belongs_where_its_gpu_is(tmp_path: Path) -> None:
    word = DriverWord({}, {MIG: DGX_A100.cards[4].address})
    assert bound(plans(DGX_A100, ranks(1, CUDA_VISIBLE_DEVICES=MIG), tmp_path, word=word)) == [f"7:{A100_NODES[7]}"]


def test_a_mig_device_of_the_old_form_names_its_gpu_itself(tmp_path: Path) -> None:
    named = f"MIG-{DGX_A100.cards[2].uuid}/7/0"
    assert bound(plans(DGX_A100, ranks(1, CUDA_VISIBLE_DEVICES=named), tmp_path)) == [f"1:{A100_NODES[1]}"]


def test_a_mig_device_that_only_a_silent_driver_knows_is_refused(tmp_path: Path) -> None:
    made = plans(DGX_A100, ranks(1, CUDA_VISIBLE_DEVICES=MIG), tmp_path)
    assert bound(made) == ["several_nodes"]
    assert MIG in made[0].why


def test_fewer_ranks_than_gpus_are_not_guessed_at(tmp_path: Path) -> None:
    """Two GPUs for each rank, or the first four? Only where all are on one node does it not matter."""
    assert bound(plans(DGX_H100, ranks(4), tmp_path / "a")) == ["several_nodes"] * 4
    assert bound(plans(DGX_H100, ranks(2, CUDA_VISIBLE_DEVICES="4,5,6,7"), tmp_path / "b")) == [f"1:{H100_NODES[1]}"] * 2


def test_gpus_of_different_models_have_no_known_numbers_unless_their_order_is_told(tmp_path: Path) -> None:
    mixed = Built("mixed", TWO, (Card("0000:17:00.0", 0, 0, L40), Card("0000:ca:00.0", 1, 1, A100)))
    assert bound(plans(mixed, ranks(2), tmp_path / "a")) == ["several_nodes"] * 2
    told = ranks(2, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert [one.node for one in plans(mixed, told, tmp_path / "b")] == [0, 1]
    by_uuid = ranks(2, CUDA_VISIBLE_DEVICES=",".join(card.uuid for card in reversed(mixed.cards)))
    assert [one.node for one in plans(mixed, by_uuid, tmp_path / "c")] == [1, 0]


def test_ascend_devices_bind_where_their_numbers_do_not_matter(tmp_path: Path) -> None:
    ascend = [Card(f"0000:{bus}:00.0", node, None, "", "0x19e5") for bus, node in (("c1", 0), ("c2", 0))]
    assert bound(plans(Built("Ascend", TWO, tuple(ascend)), ranks(2), tmp_path / "a")) == ["0:0-15,32-47"] * 2
    spread = (*ascend, Card("0000:01:00.0", 1, None, "", "0x19e5"))
    assert bound(plans(Built("Ascend", TWO, spread), ranks(3), tmp_path / "b")) == ["several_nodes"] * 3


def test_a_rank_that_no_launcher_numbers_is_bound_only_by_its_only_gpu(tmp_path: Path) -> None:
    assert bound(plans(DGX_H100, [{}], tmp_path / "a")) == ["several_nodes"]
    assert bound(plans(DGX_H100, [{"CUDA_VISIBLE_DEVICES": "6"}], tmp_path / "b")) == [f"1:{H100_NODES[1]}"]


def test_gpus_that_no_driver_lists_have_no_numbers(tmp_path: Path) -> None:
    """sysfs shows a container all GPUs of its machine, not only those that it was given."""
    root = Path(DGX_H100.write(tmp_path))
    (root / "proc/driver/nvidia/gpus").rename(root / "gone")
    ground = binder.survey(ranks(8), str(root), library="none")
    assert [gpu.node for gpu in ground.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    made = binder.plan_job(ranks(8), Held(DGX_H100.cpus, frozenset([0, 1]), 0), Want(), ground)
    assert bound(made) == ["several_nodes"] * 8
    assert "no driver lists the GPUs" in made[0].why


def test_words_of_other_runtimes_that_work_against_the_binding_are_named(tmp_path: Path) -> None:
    odd = {"OMP_NUM_THREADS": "64", "KMP_AFFINITY": "granularity=fine,compact", "OMP_PLACES": "cores"}
    notes = plans(TWO_SOCKETS, ranks(4, **odd), tmp_path)[0].notes
    assert [note.split("=")[0] for note in notes] == ["OMP_NUM_THREADS", "KMP_AFFINITY", "OMP_PLACES"]
    assert plans(TWO_SOCKETS, ranks(4, KMP_AFFINITY="disabled", OMP_NUM_THREADS="1"), tmp_path / "b")[0].notes == ()


def test_gpus_are_numbered_by_domain_first(tmp_path: Path) -> None:
    machine = Built("domains", TWO, (Card("0001:01:00.0", 1, 1, H100), Card("0000:f0:00.0", 0, 0, H100)))
    assert [one.node for one in plans(machine, ranks(2), tmp_path)] == [0, 1]
