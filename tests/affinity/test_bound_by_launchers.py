"""Whoever bound a rank before us has the last word: real taskset, mpirun, srun. What bound the whole job has not bound the rank."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from machines import Built, cards

sys.path.insert(0, str(Path(__file__).parents[1] / "schedulers"))
from slurm_cluster import Cluster, why_not

ASK = Path(__file__).with_name("bind_on_machine.py")
HERE = sorted(os.sched_getaffinity(0))
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LOCAL_", "SLURM_", "OMPI_", "PMI"))}
FIRST = str(HERE[0])

pytestmark = [pytest.mark.skipif(len(HERE) < 2, reason="takes two CPUs, which stand for two nodes"), pytest.mark.timeout(90)]
needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI: apt-get install openmpi-bin")


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """This machine's first CPU is node 0, all others are node 1; its one GPU is on node 0, and cpusets are the real ones."""
    root = Built("here", {0: FIRST, 1: ",".join(map(str, HERE[1:]))}, cards("17@0")).write(tmp_path / "machine")
    Path(root, "proc").mkdir(exist_ok=True)
    Path(root, "proc/self").symlink_to("/proc/self")
    Path(root, "sys/fs").mkdir()
    Path(root, "sys/fs/cgroup").symlink_to("/sys/fs/cgroup")
    return root


def ask(machine: str, launcher: Sequence[str], environment: dict[str, str] = CLEAN) -> list[dict[str, Any]]:
    """What each rank that this launcher starts was told."""
    words = [*launcher, sys.executable, str(ASK), machine]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr
    assert told, done.stderr
    return told


def test_a_rank_that_nobody_bound_is_bound(machine: str) -> None:
    (told,) = ask(machine, [])
    assert (told["decision"], told["node"], told["cpus"]) == ("bind", 0, [HERE[0]])


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_a_rank_that_taskset_bound_is_left(machine: str) -> None:
    (told,) = ask(machine, ["taskset", "-c", FIRST])
    assert (told["decision"], told["why"]) == ("left", f"its launcher has bound it already, to CPUs {FIRST}")


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_a_job_that_taskset_bound_is_planned_within(machine: str) -> None:
    (told,) = ask(machine, ["taskset", "-c", FIRST, "sh", "-c", '"$@"; exit $?', "sh"])
    assert (told["decision"], told["cpus"]) == ("bind", [HERE[0]])


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_a_job_that_taskset_bound_to_the_wrong_node_is_a_finding(machine: str) -> None:
    (told,) = ask(machine, ["taskset", "-c", str(HERE[1]), "sh", "-c", '"$@"; exit $?', "sh"])
    assert (told["decision"], told["code"]) == ("refused", "wrong_socket")


def mpirun(*words: str) -> list[str]:
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--host", "localhost:2", *words, "-n", "2"]


@needs_mpirun
def test_ranks_that_mpirun_bound_are_left(machine: str) -> None:
    told = ask(machine, mpirun("--bind-to", "core"))
    assert all(one["decision"] != "bind" for one in told)
    # Where mpirun put it beside its GPU, that is the finding, and who did it stands beside.
    assert all(any(words.startswith("mpirun has bound it already, to CPUs ") for words in (one["why"], *one["notes"])) for one in told)


@needs_mpirun
def test_ranks_that_mpirun_left_alone_are_bound(machine: str) -> None:
    assert [one["decision"] for one in ask(machine, mpirun("--bind-to", "none"))] == ["bind", "bind"]


@contextmanager
def srun(task: str) -> Iterator[dict[str, str]]:
    """A cluster of one node with this task plugin, and the environment in which srun reaches it."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no Slurm cluster: {reason}")
    base = Path(tempfile.mkdtemp(prefix="rp-slurm-", dir="/tmp"))  # munge's socket must fit into 107 bytes (unix(7))
    made = Cluster(base, nodes=1, task=task)
    try:
        made.up()
        yield {**CLEAN, "SLURM_CONF": made.environment["SLURM_CONF"]}
    finally:
        made.down()
        shutil.rmtree(base, ignore_errors=True)


def test_a_rank_that_srun_bound_is_left(machine: str) -> None:
    with srun("affinity") as environment:
        (named,) = ask(machine, ["srun", "-n", "1", f"--cpu-bind=map_cpu:{FIRST}"], environment)
        # Without a word of ours Slurm binds a task to the CPUs that it allocated.
        (by_itself,) = ask(machine, ["srun", "-n", "1"], environment)
    for told in (named, by_itself):
        assert (told["decision"], told["why"]) == ("left", f"srun (--cpu-bind) has bound it already, to CPUs {FIRST}")


def test_a_rank_that_srun_left_alone_is_bound(machine: str) -> None:
    with srun("none") as environment:
        (told,) = ask(machine, ["srun", "-n", "1"], environment)
    assert (told["decision"], told["cpus"]) == ("bind", [HERE[0]])
