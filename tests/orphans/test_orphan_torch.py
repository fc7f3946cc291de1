"""A real training: rank 3 of 4 dies with its launcher, its stuck loader processes live on, hold its sockets, and its peers wait."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from orphan_subjects import cgroup2, needs_namespace

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(400), needs_namespace]

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
QUIET = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    mount = cgroup2()
    assert mount is not None
    top = mount / f"rankpatrol-torch-{time.time_ns()}"
    home = top / "slurmstepd.scope" / "job_77" / "step_0"
    home.mkdir(parents=True)
    yield home
    until = time.monotonic() + 10
    for each in (home, *home.parents[:3]):
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                each.rmdir()
                break
            time.sleep(0.05)


def said(log: Path) -> list[dict]:
    """The ranks' own lines; whatever else is written may cut into one."""
    return list(parsed(log.read_text()))


def parsed(text: str) -> Iterator[dict]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            yield from [told] if isinstance(told := json.loads(line), dict) else []


def node(folder: Path, port: int, number: int, ranks: int) -> list[str]:
    return [
        *(*TORCHRUN, "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", str(ranks)),
        *("--master-addr", "127.0.0.1", "--master-port", str(port)),
        *(str(HERE / "torch_training.py"), str(folder / "nvidia0"), str(folder / "blocked"), "40"),
    ]


@contextlib.contextmanager
def peers(folder: Path, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / "node0.log").open("w") as log:
        process = subprocess.Popen(node(folder, port, 0, 3), stdout=log, stderr=log, start_new_session=True, env=QUIET)
    try:
        yield process
    finally:
        for pid in {process.pid, *(line["pid"] for line in said(folder / "node0.log"))} if process.poll() is None else ():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        process.wait()


def next_attempt(folder: Path) -> tuple[int, set[str]]:
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "4", str(HERE / "torch_training.py")]
    done = subprocess.run([*command, folder / "nvidia0", "none", "5"], capture_output=True, text=True, env=QUIET, timeout=120, check=False)
    return done.returncode, {line["what"] for line in parsed(done.stdout)}


def test_peers_of_a_dead_rank_are_free_within_two_seconds_and_the_next_attempt_starts_clean(tmp_path: Path, cgroup: Path) -> None:
    (tmp_path / "nvidia0").touch()
    os.mkfifo(tmp_path / "blocked")
    port = free_port()
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, HERE / "torch_node.py", tmp_path, cgroup]
    with (
        peers(tmp_path, port) as first_node,
        subprocess.Popen([*inside, *node(tmp_path, port, 1, 1)], stdin=-1, stdout=-1, text=True, env=QUIET) as second,
    ):
        assert second.stdin is not None
        assert second.stdout is not None
        assert second.stdout.readline() == "stuck\n", (tmp_path / "node1.log").read_text()
        second.stdin.write("\n")
        second.stdin.flush()
        assert second.stdout.readline() == "dead\n"
        # The next job dies of out-of-memory, and the peers wait: they would for ever, with the dead rank's sockets open.
        assert next_attempt(tmp_path)[1] == {"out of memory"}
        assert first_node.poll() is None
        assert "released" not in {line["what"] for line in said(tmp_path / "node0.log")}
        second.stdin.write("\n")
        second.stdin.flush()
        told = json.loads(second.stdout.readline())
        first_node.wait(60)
    free = [line for line in said(tmp_path / "node0.log") if line["what"] == "released"]
    assert set(told["while_live"]) == {"job's own"}
    assert told["planned"] == told["released"] == sorted(told["loaders"]), told
    assert {line["rank"] for line in free} == {0, 1, 2}
    assert max(line["at"] for line in free) - told["ended"] < 2.0
    assert next_attempt(tmp_path) == (0, {"step", "finished"})
    assert all(told["stacks"]), "the evidence does not say where the loader processes stood"
    waited_s = max(line["at"] for line in free) - told["began"]
    print(f"released in {told['ended'] - told['began']:.2f} s; all peers free {waited_s:.2f} s after its start")
