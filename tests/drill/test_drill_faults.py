"""The faults themselves: found by id, and striking real processes."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.errors import UsageProblem
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults import fault_ids, make
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.scene import Scene, build, draw
from rankpatrol.drill.truth import Truth, read_truth, write_truth

LOADER = """
import os, sys
open("/proc/self/comm", "w").write("pt_data_worker")
print("ready", flush=True)
with open(sys.argv[1], "rb") as shard:
    data = shard.read()
print(len(data), flush=True)
"""

SIGNALLED = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print("ready", flush=True)
print(int(signal.sigwait({signal.SIGINT})), flush=True)
signal.sigwait({signal.SIGTERM})
"""

StartLoader = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(folder=tmp_path, ranks=4, rank=2, step=3, steps=4)
    build(made)
    return made


@pytest.fixture
def start_loader(scene: Scene) -> Iterator[StartLoader]:
    """Starts a stand-in for a rank's loader process, once its block's fault has been prepared."""
    started: list[subprocess.Popen[str]] = []

    def start() -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER, str(scene.block())],
            env={**os.environ, "RANK": str(scene.rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def strike_until_noted(fault: Fault, scene: Scene) -> Truth:
    until = time.monotonic() + 10
    while not isinstance(truth := read_truth(scene.truth), Truth):
        fault.strike(scene, Moment(step=2, keeper_pid=os.getpid()))
        assert time.monotonic() < until, "the waiting loader was never noted"
    return truth


@pytest.mark.parametrize("fault_id", fault_ids())
def test_every_id_makes_its_own_fresh_fault_in_any_letter_case(fault_id: str) -> None:
    one, other = make(fault_id), make(fault_id.upper())
    assert one.id == other.id == fault_id
    assert one is not other
    assert one.causes
    assert one.expects in Expectation


def test_an_unknown_id_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageProblem, match="F99") as refused:
        make("F99")
    assert "F6b" in refused.value.help


@given(st.text(), st.integers(2, 64))
def test_the_same_seed_draws_the_same_rank_and_step(seed: str, ranks: int) -> None:
    first, second = (draw(Path("/f"), seed=seed, ranks=ranks) for _ in range(2))
    assert first == second
    assert 0 <= first.rank < ranks
    assert 10 < first.step < first.steps


def test_every_rank_and_step_has_a_block_of_its_own() -> None:
    blocks = {Scene(folder=Path("/f"), ranks=4, rank=rank, step=step).block() for rank in range(4) for step in range(1, 31)}
    assert len(blocks) == 120


def test_the_newest_checkpoint_is_found_by_its_step(scene: Scene) -> None:
    assert scene.newest_checkpoint_step() == 0
    for name in ("step_000010.pt", "step_000100.pt", "step_000020.tmp"):
        (scene.checkpoints / name).touch()
    assert scene.newest_checkpoint_step() == 100


@pytest.mark.parametrize("fault_id", ["F6b", "F6b-open"])
def test_the_loader_is_blocked_and_noted_and_the_next_reader_gets_the_whole_block(
    fault_id: str, scene: Scene, start_loader: StartLoader
) -> None:
    whole = scene.block().read_bytes()
    fault = make(fault_id)
    assert fault.prepare(scene) == {}
    process = start_loader()
    truth = strike_until_noted(fault, scene)
    assert truth == Truth(rank=2, step=3, pids=(process.pid,))
    fault.heal(scene)
    fault.heal(scene)
    assert scene.block().read_bytes() == whole
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], 0.5)
    assert (process.poll(), readable) == (None, []), "healing must not free the one that is blocked"
    fault.clear()
    fault.clear()


def test_another_ranks_loader_is_not_noted(scene: Scene) -> None:
    fault = make("F6b-open")
    fault.prepare(scene)
    other = subprocess.Popen(
        [sys.executable, "-c", LOADER, str(scene.block())], env={**os.environ, "RANK": "1"}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        until = time.monotonic() + 5
        while Path(f"/proc/{other.pid}/wchan").read_text() != "wait_for_partner":
            assert time.monotonic() < until
        fault.strike(scene, Moment(step=2, keeper_pid=os.getpid()))
        assert not isinstance(read_truth(scene.truth), Truth)
    finally:
        other.kill()
        other.communicate()


def test_other_blocks_are_left_as_they_were(scene: Scene) -> None:
    before = {path: path.read_bytes() for path in scene.data.iterdir() if path != scene.block()}
    fault = make("F6b")
    fault.prepare(scene)
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(scene.data.iterdir())) == len(before) + 1
    fault.clear()


# A rank with one loader process, as far as the drill can tell: RANK, the loader's name, and who is whose parent.
RANK = """
import os, signal
child = os.fork()
if child == 0:
    open("/proc/self/comm", "w").write("pt_data_worker")
    os.write(1, b"ready %d\\n" % os.getpid())
signal.pause()
"""


@pytest.fixture
def start_rank() -> Iterator[Callable[[int], tuple[int, int]]]:
    """Starts a stand-in for a rank, below a wrapper that wears its RANK too, and gives its pid and its loader's."""
    started: list[subprocess.Popen[str]] = []

    def start(rank: int) -> tuple[int, int]:
        wrapper = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
        env = {**os.environ, "RANK": str(rank)}
        process = subprocess.Popen(
            [sys.executable, "-c", wrapper, RANK], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        loader = int(process.stdout.readline().split()[1])
        return int(Path(f"/proc/{loader}/stat").read_text().rsplit(")", 1)[1].split()[1]), loader

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_for_state(pid: int, wanted: str) -> None:
    until = time.monotonic() + 5
    while state(pid) not in wanted:
        assert time.monotonic() < until, f"process {pid} is in state {state(pid)}, not {wanted}"


def test_a_stopped_rank_is_the_drawn_one_alone_and_not_before_its_step(scene: Scene, start_rank: Callable[[int], tuple[int, int]]) -> None:
    fault, (rank, loader), (other, _) = make("F11"), start_rank(2), start_rank(1)
    fault.strike(scene, Moment(step=1, keeper_pid=os.getpid()))
    assert not scene.truth.exists()
    fault.strike(scene, Moment(step=2, keeper_pid=os.getpid()))
    wait_for_state(rank, "T")
    assert "T" not in {state(loader), state(other)}
    truth = read_truth(scene.truth)
    assert isinstance(truth, Truth)
    assert (truth.rank, truth.step, truth.pids) == (2, 3, (rank,))
    assert truth.at_unix_s is not None


def test_a_killed_rank_is_killed_once(scene: Scene, start_rank: Callable[[int], tuple[int, int]]) -> None:
    fault, (first, _) = make("F3"), start_rank(2)
    pidfd = os.pidfd_open(first)
    fault.strike(scene, Moment(step=2, keeper_pid=os.getpid()))
    assert select.select([pidfd], [], [], 5)[0], "a pidfd is readable once its process has ended"
    os.close(pidfd)
    again, _ = start_rank(2)
    fault.strike(scene, Moment(step=3, keeper_pid=os.getpid()))
    assert state(again) in {"R", "S"}, "the next attempt's rank must be left alone"


def test_stopped_loaders_are_noted_with_the_step_that_is_missed_and_stay_stopped(
    scene: Scene, start_rank: Callable[[int], tuple[int, int]]
) -> None:
    fault, (rank, loader), (_, other) = make("F6a"), start_rank(2), start_rank(1)
    fault.strike(scene, Moment(step=2, keeper_pid=os.getpid()))
    wait_for_state(loader, "T")
    assert "T" not in {state(rank), state(other)}
    assert read_truth(scene.truth) == Truth(rank=2, step=3, pids=(loader,))
    fault.strike(scene, Moment(step=4, keeper_pid=os.getpid()))
    assert read_truth(scene.truth) == Truth(rank=2, step=5, pids=(loader,)), "what was read ahead carries the rank on for some steps"
    fault.heal(scene)
    fault.strike(scene, Moment(step=9, keeper_pid=os.getpid()))
    assert read_truth(scene.truth) == Truth(rank=2, step=5, pids=(loader,)), "the steps of the next attempt are none of it"
    assert state(loader) == "T"


def test_a_script_that_exits_at_once_exits_with_three(scene: Scene) -> None:
    make("exits-at-once").prepare(scene)
    assert subprocess.run([sys.executable, str(scene.script)], check=False).returncode == 3


def test_ctrl_c_comes_once_and_not_before_step_five(scene: Scene) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SIGNALLED],
        stdout=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(10, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        fault = make("ctrl-c")
        fault.strike(scene, Moment(step=4, keeper_pid=process.pid))
        assert not isinstance(read_truth(scene.truth), Truth)
        fault.strike(scene, Moment(step=5, keeper_pid=process.pid))
        assert process.stdout.readline() == "2\n"
        scene.truth.unlink()
        fault.strike(scene, Moment(step=6, keeper_pid=process.pid))
        assert not scene.truth.exists()
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("fault_id", ["N9-ahead", "N9-back"])
def test_a_clock_that_is_set_is_another_one_for_the_agent_alone(scene: Scene, fault_id: str) -> None:
    fault = make(fault_id)
    variables = {**os.environ, **fault.prepare(scene)}
    tells = "import time\nprint(time.time())"

    def off_s(name: str) -> int:
        told = subprocess.run([sys.executable, "-S", "-c", tells, name], env=variables, capture_output=True, text=True, check=True)
        return round((float(told.stdout) - time.time()) / 3600)

    write_truth(scene.truth, Truth(rank=0, step=1, at_unix_s=time.time() - 60))
    assert off_s("rankpatrol.agent") == 0
    fault.strike(scene, Moment(1, os.getpid()))
    assert (off_s("rankpatrol.agent"), off_s("somebody.else")) == ({"N9-ahead": 1, "N9-back": -1}[fault_id], 0)


def test_what_was_told_by_the_set_clock_is_read_by_ours(scene: Scene) -> None:
    fault = make("N9-back-F5")
    fault.prepare(scene)
    now = time.time()
    assert fault.by_our_clock(Event(at_unix_s=now, kind="alert")).at_unix_s == now
    write_truth(scene.truth, Truth(rank=0, step=1, at_unix_s=now - 60))
    fault.strike(scene, Moment(1, os.getpid()))
    told = fault.by_our_clock(Event(at_unix_s=now - 3590, kind="verdict", onset_unix_s=now - 3610))
    assert (told.at_unix_s, told.onset_unix_s) == pytest.approx((now + 10, now - 10))
    assert fault.by_our_clock(Event(at_unix_s=now - 5, kind="alert")).at_unix_s == now - 5
