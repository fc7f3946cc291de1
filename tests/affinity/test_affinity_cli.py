"""`rankpatrol affinity` and `rankpatrol bind`, as their users call them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines import DGX_A100, DGX_H100, SILENT, TWO_SOCKETS

import rankpatrol
from rankpatrol.affinity.sysfs import read_machine
from rankpatrol.cli.binding import read_plainly

TOPO = Path(__file__).parents[1] / "data/affinity/topo"
ONE_NODE = len(read_machine().with_cpus()) == 1
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LOCAL_", "SLURM_", "OMPI_"))}

SRC = {**CLEAN, "PYTHONPATH": str(Path(rankpatrol.__file__).parents[1])}


def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankpatrol", *words], env={**CLEAN, **more}, capture_output=True, timeout=15, check=False, text=True
    )


def test_show_tells_a_machine_to_a_person(tmp_path: Path) -> None:
    done = call("affinity", "show", "--root", DGX_H100.write(tmp_path))
    assert done.returncode == 0
    assert "node 1: CPUs 56-111,168-223, distance 21 to node 0" in done.stdout
    assert "GPU 0000:9d:00.0, NVIDIA H100 80GB HBM3" in done.stdout
    assert "mlx5_4 under the same PCIe bridge (NCCL_IB_HCA==mlx5_4)" in done.stdout


def test_show_tells_it_to_a_program(tmp_path: Path) -> None:
    shown = json.loads(call("affinity", "show", "--json", "--root", DGX_A100.write(tmp_path)).stdout)
    assert [gpu["node"] for gpu in shown["gpus"]] == [3, 3, 1, 1, 7, 7, 5, 5]


def test_a_topo_table_that_contradicts_sysfs_is_a_warning(tmp_path: Path) -> None:
    done = call("affinity", "show", "--topo", str(TOPO / "order_reversed.txt"), "--root", TWO_SOCKETS.write(tmp_path))
    assert done.returncode == 1
    assert "warning: GPU0: topo -m says node 1, sysfs says node 0" in done.stdout


def test_what_is_no_topo_table_is_refused() -> None:
    done = call("affinity", "show", "--topo", __file__)
    assert (done.returncode, done.stdout) == (65, "")
    assert "nvidia-smi topo -m" in done.stderr


def test_plan_names_every_rank_and_what_stays_idle(tmp_path: Path) -> None:
    done = call("affinity", "plan", "--root", DGX_A100.write(tmp_path))
    assert done.returncode == 0
    assert "local rank 0: CPUs 48-63,176-191 of node 3, memory preferred on node 3: 0000:07:00.0 is on node 3" in done.stdout
    assert "get no rank in mode node" in done.stdout


def test_plan_exits_with_1_where_nothing_sound_can_be_said(tmp_path: Path) -> None:
    done = call("affinity", "plan", "--json", "--root", SILENT.write(tmp_path))
    assert done.returncode == 1
    assert {rank["code"] for rank in json.loads(done.stdout)["ranks"]} == {"node_unknown"}


@pytest.mark.skipif(not ONE_NODE, reason="this machine has several nodes")
def test_on_this_machine_there_is_nothing_to_bind() -> None:
    assert "there is nothing to bind on this machine" in call("affinity", "show").stdout
    assert "there is nothing to bind" in call("affinity", "plan").stdout


@pytest.mark.skipif(not ONE_NODE, reason="this machine has several nodes")
def test_check_of_a_rank_on_this_machine() -> None:
    rank = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**CLEAN, "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert rank.stdout is not None
        rank.stdout.readline()
        done = call("affinity", "check", "--json", "--pid", str(rank.pid))
        everybody = json.loads(call("affinity", "check", "--json").stdout)["ranks"]
    finally:
        rank.communicate(b"\n", timeout=10)
    (audit,) = json.loads(done.stdout)["ranks"]
    assert (done.returncode, audit["rank"], audit["verdict"], audit["threads"]) == (0, 5, "nothing_to_bind", 1)
    assert [audit["pid"] for audit in everybody].count(rank.pid) == 1


def test_check_of_a_process_that_is_not_there() -> None:
    done = call("affinity", "check", "--pid", "4194303")
    assert (done.returncode, done.stdout) == (65, "")
    assert "gone" in done.stderr


def test_check_wants_one_process_for_one_gpu() -> None:
    assert call("affinity", "check", "--gpu", "0000:17:00.0").returncode == 64


@pytest.mark.parametrize("words", [["--"], []])
def test_bind_becomes_the_command_and_its_exit_code(words: list[str]) -> None:
    done = call("bind", *words, sys.executable, "-c", "import sys; print('ran'); sys.exit(7)")
    assert (done.returncode, done.stdout) == (7, "ran\n")


def test_bind_passes_on_what_a_shell_would_say_of_a_missing_command() -> None:
    assert call("bind", "--", "there-is-none").returncode == 127
    assert call("bind", "--", "/").returncode == 126
    assert call("bind").returncode == 64


SLOWLY = "from rankpatrol.cli.main import main; main()"
PLAIN = [
    ["--", "echo", "ran"],
    ["echo", "ran", "--force"],
    ["--mode", "core", "--memory=none", "-q", "--force", "echo", "--", "-q"],
    ["--gpu", "ffff:00:00.0", "true"],
    ["--", "there-is-none"],
    ["--", "/"],
    ["--", "--"],
]
ODD = [[], ["--"], ["--help"], ["--mode", "x", "true"], ["--mode"], ["--nonsense", "true"], ["--quiet=1", "true"], ["-qx", "true"], ["-"]]


@pytest.mark.parametrize("words", PLAIN + ODD)
def test_both_ways_of_bind_say_and_do_the_same(words: list[str]) -> None:
    slow = subprocess.run(
        [sys.executable, "-c", SLOWLY, "bind", *words], env=CLEAN, capture_output=True, timeout=15, check=False, text=True
    )
    quick = call("bind", *words)
    assert (quick.returncode, quick.stdout, quick.stderr) == (slow.returncode, slow.stdout, slow.stderr)


@pytest.mark.parametrize("words", PLAIN)
def test_plain_words_take_the_quick_way(words: list[str]) -> None:
    assert read_plainly(words) is not None


@pytest.mark.parametrize("words", ODD)
def test_words_that_need_an_answer_take_the_slow_way(words: list[str]) -> None:
    assert read_plainly(words) is None


def test_a_rank_does_not_wait_for_what_bind_does_not_need() -> None:
    code = "import sys; before = set(sys.modules); import rankpatrol.cli.binding; print(*(set(sys.modules) - before))"
    loaded = set(subprocess.run([sys.executable, "-S", "-c", code], env=SRC, capture_output=True, check=True, text=True).stdout.split())
    assert not loaded & {"click", "typing", "re", "json", "msgspec", "subprocess", "rankpatrol.affinity.nvml"}, loaded


def test_bind_refuses_a_gpu_that_is_not_there() -> None:
    done = call("bind", "--gpu", "ffff:00:00.0", "--", "true")
    assert done.returncode == 65
    assert "affinity show" in done.stderr


def test_measure_gives_numbers_of_this_machine() -> None:
    from rankpatrol.affinity.kernel import held
    from rankpatrol.affinity.measure import measure

    speeds = list(measure(read_machine(), held().cpus, buffer_bytes=4 << 20))
    assert all(speed.latency_ns > 0 and speed.copy_gb_per_s > 0 for speed in speeds if speed.from_node == speed.to_node)
