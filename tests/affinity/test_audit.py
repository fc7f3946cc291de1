"""Running ranks, judged from what /proc said of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.affinity.audit import AuditVerdict, RunningProcess, Seen, Subject, judge, memory_by_node, used_gpus
from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.machine import Gpu, Machine, Node
from rankpatrol.affinity.plan import Place
from rankpatrol.affinity.visible import Choice
from rankpatrol.core.records import Missing

MACHINE = Machine(
    {
        0: Node(0, parse_cpus("0-3"), True, {0: 10, 1: 21}),
        1: Node(1, parse_cpus("4-7"), True, {0: 21, 1: 10}),
        2: Node(2, frozenset(), True, {}),
    }
)
GPU = Gpu("0000:17:00.0", "nvidia", "H100", 0, parse_cpus("0-3"), "/")
PLACE = Place(MACHINE.nodes[0], "placed", "")
GIB = 1 << 30


def process(threads: str, memory: object, pid: int = 100, name: str = "python") -> RunningProcess:
    return RunningProcess(
        pid=pid, name=name, threads={pid + at: parse_cpus(cpus) for at, cpus in enumerate(threads.split())}, memory_bytes=memory
    )


def judged(*processes: RunningProcess, gpu: Gpu = GPU):
    return judge(Subject(3, processes), Choice((gpu,), "it was named"), PLACE, MACHINE)


def test_a_rank_on_its_gpus_node_is_bound() -> None:
    audit = judged(process("0-3 0-3 1", {0: 10 * GIB, 1: GIB}))
    assert (audit.verdict, audit.threads, audit.threads_elsewhere) == (AuditVerdict.BOUND, 3, 0)


def test_memory_on_the_other_node_is_told_with_its_share() -> None:
    audit = judged(process("0-3", {0: 29 * GIB, 1: 71 * GIB}))
    assert audit.verdict == AuditVerdict.MISBOUND
    assert audit.findings == ("71 % of rank 3's memory (71.0 GiB of 100.0 GiB) is on node 1, its GPU 0000:17:00.0 is on node 0",)


def test_threads_that_can_only_run_elsewhere_are_told() -> None:
    audit = judged(process("4-7 4-7 0-3", {0: GIB}))
    assert audit.findings == ("2 of 3 threads of rank 3 can only run on node 1 (CPUs 4-7), its GPU 0000:17:00.0 is on node 0",)
    assert audit.threads_elsewhere == 2


def test_a_loader_process_elsewhere_is_named() -> None:
    audit = judged(process("0-3", {0: GIB}), process("6", {0: GIB}, 200, "pt_data_worker"))
    assert "1 of 1 threads of pt_data_worker (200) of rank 3" in audit.findings[0]


def test_a_rank_that_nobody_bound_is_loose_and_no_fault() -> None:
    audit = judged(process("0-7", {0: GIB}))
    assert (audit.verdict, audit.findings[0].split(":")[0]) == (AuditVerdict.LOOSE, "rank 3 is not bound")


def test_a_gpus_own_memory_node_is_local() -> None:
    grace = GPU._replace(node=2)
    assert judged(process("0-3", {0: GIB, 2: 9 * GIB}), gpu=grace).verdict == AuditVerdict.BOUND


def test_memory_that_cannot_be_read_is_said_and_held_against_nobody() -> None:
    audit = judged(process("0-3", Missing("no right")))
    assert audit.verdict == AuditVerdict.BOUND
    assert "no right" in audit.findings[0]


def test_a_gpu_whose_node_is_unknown_leaves_the_rank_unjudged() -> None:
    audit = judge(
        Subject(3, (process("4-7", {1: GIB}),)), Choice((GPU,), ""), Place(None, "node_unknown", "the firmware does not say"), MACHINE
    )
    assert (audit.verdict, audit.findings) == (AuditVerdict.UNKNOWN, ("rank 3: the firmware does not say",))


def test_one_node_has_nothing_to_bind() -> None:
    one = Machine({0: MACHINE.nodes[0]})
    assert judge(Subject(0, (process("0-3", {0: GIB}),)), Choice((), ""), Place(None, "no_gpu", ""), one).verdict == AuditVerdict.NOTHING


CARDS = tuple(GPU._replace(address=f"0000:{at:02x}:00.0", uuid=f"GPU-{at}", device=f"/dev/nvidia{at}") for at in range(8))


def used(opened: str, listed: str = "", *, elsewhere: bool = False, **environment: str) -> list[str]:
    files, addresses = frozenset(f"/dev/nvidia{at}" for at in opened), frozenset(f"0000:{int(at):02x}:00.0" for at in listed)
    return [gpu.uuid[4:] for gpu in used_gpus(environment, CARDS, {}, Seen(files, addresses, elsewhere)).gpus]


def test_the_drivers_list_comes_before_what_trainings_usually_do() -> None:
    assert used("01234567", "3", LOCAL_RANK="2", LOCAL_WORLD_SIZE="8") == ["3"]


def test_a_stray_context_on_the_first_gpu_is_not_taken_for_the_ranks_own() -> None:
    assert used("01234567", "02", LOCAL_RANK="2", LOCAL_WORLD_SIZE="8") == ["2"]
    assert used("01234567", "01", LOCAL_RANK="2", LOCAL_WORLD_SIZE="8") == ["0", "1"]


def test_the_only_gpu_that_a_rank_has_open_is_its_own() -> None:
    """Slurm's device cgroup numbers it 0, whichever it is."""
    assert used("5", CUDA_VISIBLE_DEVICES="0") == ["5"]


def test_a_rank_with_all_gpus_open_is_told_by_its_environment() -> None:
    assert used("01234567", LOCAL_RANK="2", LOCAL_WORLD_SIZE="8") == ["2"]
    assert used("01234567", CUDA_VISIBLE_DEVICES="6") == ["6"]


def test_numbers_that_fit_only_what_a_rank_can_open_count_there() -> None:
    assert used("456", CUDA_VISIBLE_DEVICES="0,1,2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="3") == ["5"]
    assert used("456", CUDA_VISIBLE_DEVICES="4,5,6", LOCAL_RANK="1", LOCAL_WORLD_SIZE="3") == ["5"]


def test_what_could_be_meant_in_two_ways_names_no_gpu() -> None:
    assert used("012", CUDA_VISIBLE_DEVICES="1,2", LOCAL_RANK="9") == ["0", "1", "2"]


def test_numbers_of_another_container_are_not_ours() -> None:
    assert used("", elsewhere=True, CUDA_VISIBLE_DEVICES="0") == [str(at) for at in range(8)]
    assert used("", elsewhere=True, CUDA_VISIBLE_DEVICES="GPU-3") == ["3"]
    assert used("", CUDA_VISIBLE_DEVICES="0") == ["0"]


MAPS = """\
00400000 prefer:1 file=/usr/bin/python3.11 mapped=700 N0=600 N1=100 kernelpagesize_kB=4
01a3c000 prefer:1 heap anon=300 dirty=300 N0=100 N1=200 kernelpagesize_kB=4
7f0000000000 prefer:1 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048
7f1000000000 default file=/dev/shm/torch_1 dirty=10 N1=10 kernelpagesize_kB=4
7f2000000000 default
7ffc00000000 default stack anon=5 dirty=5 N0=5 kernelpagesize_kB=4
"""


def test_memory_by_node_counts_what_is_the_processs_own() -> None:
    assert memory_by_node(MAPS) == {0: 105 * 4096, 1: 210 * 4096 + 2 * (2 << 20)}


@pytest.mark.parametrize("text", ["", "\n", "7f00 default", "x y N0= N1=z"])
def test_odd_lines_are_no_memory_or_refused(text: str) -> None:
    try:
        assert memory_by_node(text) == {}
    except ValueError:
        assert "N1=z" in text


sets = st.frozensets(st.integers(0, 7), min_size=1)
memories = st.dictionaries(st.integers(0, 3), st.integers(0, 1 << 40), max_size=4) | st.builds(Missing, st.text())
processes = st.lists(
    st.builds(
        RunningProcess, pid=st.integers(1, 9), name=st.text(max_size=5), threads=st.dictionaries(st.integers(), sets), memory_bytes=memories
    ),
    min_size=1,
    max_size=3,
)


@given(processes)
def test_any_rank_is_judged_with_a_reason(them) -> None:
    audit = judged(*them)
    assert audit.findings
    if audit.verdict == AuditVerdict.BOUND:
        assert all(cpus <= parse_cpus("0-3") for each in them for cpus in each.threads.values())
