"""A rank under the shim: real processes, really bound, on a machine whose topology is told by a tree."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machines import Built, cards

from rankpatrol.launch.rundir import JobSpec, RunDir

SHIM = Path(__file__).with_name("shim_on_machine.py")
TELL = "import json, os; print(json.dumps(sorted(os.sched_getaffinity(0))))"
HERE = sorted(os.sched_getaffinity(0))

needs_two = pytest.mark.skipif(len(HERE) < 2, reason="binding needs two CPUs")


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    made = RunDir.create()
    write_job(made, tmp_path, bind=True)
    yield made
    made.remove()


def write_job(run_dir: RunDir, folder: Path, *, bind: bool) -> None:
    spec = JobSpec(
        job="job",
        job_dir=str(folder),
        command=("train",),
        policy="recover",
        patience_s=180,
        checkpoints=None,
        started_unix_s=0.0,
        bind=bind,
    )
    run_dir.write("job.json", spec)


def two_nodes(folder: Path, places: str = "17@0 b1@1") -> str:
    """This very machine's CPUs, as two nodes with a GPU each."""
    nodes = {0: str(HERE[0]), 1: ",".join(map(str, HERE[1:]))}
    return Built("two nodes", nodes, cards(places)).write(folder / "machine")


def started(run_dir: RunDir, root: str, *, before: object = None, **more: str) -> tuple[list[int], str, dict[str, object]]:
    """The rank's affinity, what was said, and what was written down."""
    words = {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANKPATROL_RUN_DIR": str(run_dir.path)}
    code = (
        "import os, subprocess, sys\n"
        f"before = {before!r}\n"
        f"words = [{sys.executable!r}, {str(SHIM)!r}, str(os.getpid()), {root!r}, {sys.executable!r}, '-c', {TELL!r}]\n"
        "sys.exit(subprocess.call(words, preexec_fn=(lambda: os.sched_setaffinity(0, before)) if before else None))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **words, **more}, capture_output=True, timeout=15, check=True, text=True
    )
    record = run_dir.path / "bindings/0.1.json"
    return json.loads(done.stdout), done.stderr, json.loads(record.read_text()) if record.exists() else {}


@needs_two
def test_a_rank_is_bound_to_its_gpus_node(run_dir: RunDir, tmp_path: Path) -> None:
    cpus, said, record = started(run_dir, two_nodes(tmp_path))
    assert cpus == HERE[1:]
    assert "bound to CPUs" in said
    assert (record["decision"], record["node"], record["cpus"]) == ("bind", 1, HERE[1:])


@needs_two
def test_the_ranks_own_visible_devices_decide(run_dir: RunDir, tmp_path: Path) -> None:
    assert started(run_dir, two_nodes(tmp_path), CUDA_VISIBLE_DEVICES="1,0")[0] == HERE[:1]


@needs_two
def test_a_rank_that_its_launcher_has_bound_is_left_alone(run_dir: RunDir, tmp_path: Path) -> None:
    cpus, said, record = started(run_dir, two_nodes(tmp_path), before={HERE[1]})
    assert (cpus, record["decision"]) == ([HERE[1]], "left")
    assert "has bound it already" in said


@needs_two
def test_a_user_who_declines_gets_no_binding_and_no_word(run_dir: RunDir, tmp_path: Path) -> None:
    write_job(run_dir, tmp_path, bind=False)
    assert started(run_dir, two_nodes(tmp_path)) == (HERE, "", {})


@needs_two
def test_where_nothing_can_be_said_the_rank_starts_unbound_and_hears_why(run_dir: RunDir, tmp_path: Path) -> None:
    cpus, said, record = started(run_dir, two_nodes(tmp_path, "17@0 b1@-1"))
    assert cpus == HERE
    assert "not bound: the firmware does not say" in said
    assert record["code"] == "node_unknown"


def test_a_machine_with_one_node_gets_no_word(run_dir: RunDir, tmp_path: Path) -> None:
    root = Built("one node", {0: ",".join(map(str, HERE))}, cards("17@0 b1@0")).write(tmp_path / "machine")
    cpus, said, record = started(run_dir, root)
    assert (cpus, said, record["code"]) == (HERE, "", "one_node")


def test_a_machine_that_makes_no_sense_keeps_no_rank_from_starting(run_dir: RunDir, tmp_path: Path) -> None:
    root = Path(two_nodes(tmp_path))
    (root / "sys/devices/system/node/online").write_text("what?\n")
    cpus, said, record = started(run_dir, str(root))
    assert (cpus, record["code"]) == (HERE, "one_node")
    assert "Traceback" not in said


@needs_two
def test_a_driver_that_lists_nonsense_keeps_no_rank_from_starting(run_dir: RunDir, tmp_path: Path) -> None:
    root = Path(two_nodes(tmp_path))
    (root / "proc/driver").rename(root / "gone")
    (root / "sys/class/kfd/kfd/topology/nodes/1").mkdir(parents=True)
    (root / "sys/class/kfd/kfd/topology/nodes/1/properties").write_text("simd_count many\n")
    cpus, said, record = started(run_dir, str(root))
    assert (cpus, record["code"]) == (HERE, "failed")
    assert "makes no sense to us (ValueError" in said
