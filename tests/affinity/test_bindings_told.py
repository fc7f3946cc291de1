"""What ranks were bound to is told: in events, in status, in bundles, by doctor; and who is misbound, of a slow job."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import DGX_A100, SILENT, TWO_SOCKETS, Built, cards

from rankpatrol.affinity.sysfs import read_machine
from rankpatrol.agent.bindings import as_event, for_bundle, grouped, misbound, say_binding
from rankpatrol.doctor.binding import judge_binding, look
from rankpatrol.doctor.rows import Level
from rankpatrol.launch.rundir import Binding
from standin_job import LAUNCHER, TRAINING, running

HERE = sorted(os.sched_getaffinity(0))
TWO_CPUS = pytest.mark.skipif(len(HERE) < 2, reason="takes two CPUs, which stand for two nodes")
BOUND = Binding(decision="bind", why="0000:17:00.0 is on node 0", gpu="0000:17:00.0", node=0, cpus=(0, 1, 2, 3), memory_node=0)
REFUSED = Binding(decision="refused", why="the firmware does not say")


def test_a_binding_in_a_few_words() -> None:
    assert say_binding(BOUND) == "bound to CPUs 0-3 of node 0, memory of node 0"
    assert say_binding(REFUSED) == "not bound: the firmware does not say"
    assert say_binding(Binding(decision="left", why="srun has bound it already")) == "left as it is: srun has bound it already"


def test_an_event_has_the_cpus_as_the_kernel_writes_them() -> None:
    assert as_event(BOUND)["cpus"] == "0-3"
    assert as_event(REFUSED) == {
        "decision": "refused",
        "why": "the firmware does not say",
        "gpu": None,
        "node": None,
        "cpus": None,
        "memory_node": None,
        "notes": (),
    }


def test_ranks_of_the_same_fate_are_one_line() -> None:
    rows = grouped({2: BOUND, 0: BOUND, 1: BOUND, 3: REFUSED})
    assert rows == [{"ranks": "0-2", "words": say_binding(BOUND)}, {"ranks": "3", "words": say_binding(REFUSED)}]


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """This machine's first CPU is node 0, all others are node 1; each has a GPU."""
    return Built("here", {0: str(HERE[0]), 1: ",".join(map(str, HERE[1:]))}, cards("17@0 b1@1")).write(tmp_path / "machine")


@pytest.fixture
def rank() -> Iterator[int]:
    """Rank 5, the second of two here, which may run on the first CPU only."""
    environment = {**os.environ, "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    code = f"import os; os.sched_setaffinity(0, [{HERE[0]}]); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.communicate(b"\n", timeout=10)


@TWO_CPUS
def test_a_misbound_rank_is_said_of_a_slow_job(machine: str, rank: int) -> None:
    (said,) = misbound({5: rank}, machine)
    assert said.startswith(f"1 of 1 threads of rank 5 can only run on node 0 (CPUs {HERE[0]}), its GPU 0000:b1:00.0 is on node 1")


@TWO_CPUS
def test_a_rank_that_may_run_where_its_gpu_is_is_no_finding(machine: str) -> None:
    assert misbound({0: os.getpid()}, machine) == ()


def test_a_rank_that_is_gone_is_no_finding() -> None:
    assert misbound({0: 4_194_303}) == ()


def test_a_bundle_has_both_what_was_done_and_how_it_stands() -> None:
    told = for_bundle({0: BOUND}, {0: os.getpid(), 1: 4_194_303})
    assert told["0"]["at_start"]["node"] == 0
    assert told["0"]["now"].threads >= 1
    assert (told["1"]["at_start"], told["1"]["now"].reason) == (None, "process 4194303 is gone")


@pytest.mark.parametrize(
    ("machine", "level", "words"),
    [
        (DGX_A100, Level.OK, "each rank is bound to the node of its GPU (8 nodes, 8 GPUs)"),
        (SILENT, Level.HINT, "4 of 4 GPUs have no known place"),
        (Built("one socket", {0: "0-7"}, cards("17@0")), Level.OK, "there is nothing to bind"),
        (Built("no GPU", TWO_SOCKETS.nodes), Level.OK, "2 NUMA nodes and no GPU"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_doctor_says_whether_ranks_can_be_bound(tmp_path: Path, machine: Built, level: Level, words: str) -> None:
    (row,) = judge_binding(look({}, machine.write(tmp_path)))
    assert row.level is level
    assert words in row.found


@pytest.mark.timeout(60)
@pytest.mark.skipif(len(read_machine().with_cpus()) > 1, reason="this machine has several nodes")
def test_a_job_tells_it_in_its_events_and_its_status(tmp_path: Path) -> None:
    with running(tmp_path, "--no-probe", launcher=(str(LAUNCHER), "2", str(TRAINING), "8", "well")) as job:
        started = job.wait_for("attempt_started")
        assert {rank["binding"]["decision"] for rank in started["ranks"].values()} == {"nothing"}
        job.wait_for("progress")
        shown = job.type("status", "job")
        told = json.loads(job.type("status", "job", "--json").stdout)
    words = "not bound: one NUMA node has all the CPUs: there is nothing to bind"
    assert told["bindings"] == [{"ranks": "0-1", "words": words}]
    assert f"ranks 0-1: {words}" in shown.stdout
