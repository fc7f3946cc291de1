import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from collect_subjects import started, wait_for

from rankpatrol.collect.processes import sample_process
from rankpatrol.collect.stacks import take_native, take_stack, take_stacks
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import ProcessSample, Stack
from rankpatrol.system.process import identify

BLOCKED = "def load_shard():\n  ready(); time.sleep(600)\ndef train():\n  load_shard()\ntrain()"


def who(pid: int) -> ProcessId:
    process = identify(pid)
    assert process is not None
    return process


def state(pid: int) -> str | None:
    sample = sample_process(pid, with_files=False)
    return sample.state if isinstance(sample, ProcessSample) else None


def wait_for_state(pid: int, wanted: str) -> None:
    wait_for(lambda: True if state(pid) == wanted else None)


def names(stack: Stack | Missing) -> list[str]:
    assert isinstance(stack, Stack), stack
    main = stack.main_thread()
    assert main is not None
    return [frame.name for frame in main.frames]


def reason(stack: Stack | str | Missing) -> str:
    assert isinstance(stack, Missing), stack
    return stack.reason


@pytest.fixture
def fake_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A py-spy beside "our" Python that notes each call's arguments; a test writes the rest of its script."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    script = tmp_path / "py-spy"
    script.touch(0o755)
    return script


def script(path: Path, rest: str) -> None:
    path.write_text(f'#!/bin/sh\nfor pid; do :; done\necho "$@" >> {path.with_name("calls")}\n{rest}\n')


def calls(path: Path) -> list[str]:
    return path.with_name("calls").read_text().splitlines()


def test_the_frames_of_a_blocked_program_come_innermost_first() -> None:
    with started(BLOCKED) as pid:
        wait_for_state(pid, "S")
        assert names(take_stack(who(pid))) == ["load_shard", "train", "<module>"]
        assert state(pid) == "S"


def test_a_stopped_process_gives_its_stack_and_stays_stopped() -> None:
    with started(BLOCKED) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        assert "load_shard" in names(take_stack(who(pid)))
        assert "is stopped" in reason(take_native(who(pid)))
        assert state(pid) == "T"


def test_native_frames_are_shown_and_the_process_goes_on() -> None:
    with started(BLOCKED) as pid:
        wait_for_state(pid, "S")
        native = take_native(who(pid))
        assert isinstance(native, str)
        assert "load_shard" in native
        assert "libc" in native
        wait_for_state(pid, "S")


def test_a_program_that_is_not_python_is_said_to_be_none() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        wait_for_state(other.pid, "S")
        try:
            assert reason(take_stack(who(other.pid))) == f"process {other.pid} runs no Python"
        finally:
            other.kill()


def test_a_reused_pid_is_never_looked_at(fake_py_spy: Path) -> None:
    script(fake_py_spy, "exit 1")
    before = msgspec.structs.replace(who(os.getpid()), start_ticks=1)
    assert "another process" in reason(take_stack(before))
    assert "another process" in reason(take_native(before))
    assert not fake_py_spy.with_name("calls").exists()


def test_a_process_that_ended_is_gone() -> None:
    with started(BLOCKED) as pid:
        process = who(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for_state(pid, "Z")
        assert "has ended" in reason(take_stack(process))
    assert reason(take_stack(process)) == f"process {process.pid} is gone"


def test_a_process_in_d_state_is_never_attached_to() -> None:
    code = (
        "ready()\nif ctypes.CDLL(None).syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x4000 | 17, 0, 0, 0, 0) == 0:\n"
        "  while True: time.sleep(600)"
    )
    with started(code) as pid:
        wait_for_state(pid, "D")
        assert "D state" in reason(take_native(who(pid)))
        assert names(take_stack(who(pid))) == ["<module>"]
        assert state(pid) == "D"


def test_a_forbidden_look_names_the_capability_it_needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    code = (
        "import os, sys\nfrom rankpatrol.collect.stacks import take_stack\nfrom rankpatrol.system.process import identify\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "print(take_stack(identify(int(sys.argv[1]))).reason)"
    )
    with started(BLOCKED) as pid:
        said = subprocess.run([sys.executable, "-c", code, str(pid)], stdout=subprocess.PIPE, text=True, check=True, timeout=15).stdout
    if "not installed" in said:
        pytest.skip("nobody may not run this environment's py-spy")
    assert "CAP_SYS_PTRACE" in said
    assert "ptrace_scope" in said


MOVES_UNLESS_STOPPED = """
case "$*" in
    *--nonblocking*) echo "Error: Failed to get stack traces" >&2; exit 1;;
esac
echo "[{\\"pid\\": $pid, \\"frames\\": []}]"
"""


def test_a_moving_stack_is_tried_without_a_stop_twice_then_with_one(fake_py_spy: Path) -> None:
    script(fake_py_spy, MOVES_UNLESS_STOPPED)
    with started(BLOCKED) as pid:
        wait_for_state(pid, "S")
        assert isinstance(take_stack(who(pid)), Stack)
        assert calls(fake_py_spy) == [f"dump --json --nonblocking --pid {pid}"] * 2 + [f"dump --json --pid {pid}"]


def test_output_that_is_no_dump_is_a_failure_with_its_reason(fake_py_spy: Path) -> None:
    script(fake_py_spy, "echo nonsense")
    with started(BLOCKED) as pid:
        wait_for_state(pid, "S")
        assert "no stack from py-spy" in reason(take_stack(who(pid)))
        assert len(calls(fake_py_spy)) == 3


def test_a_process_that_the_tool_left_stopped_is_resumed(fake_py_spy: Path) -> None:
    script(fake_py_spy, 'case "$*" in *--nonblocking*) ;; *) kill -STOP $pid;; esac\necho "Error: lost" >&2; exit 1')
    with started(BLOCKED) as pid:
        wait_for_state(pid, "S")
        assert "lost" in reason(take_stack(who(pid)))
        wait_for_state(pid, "S")


def test_a_process_that_was_stopped_before_is_not_resumed(fake_py_spy: Path) -> None:
    script(fake_py_spy, 'echo "Error: lost" >&2; exit 1')
    with started(BLOCKED) as pid:
        os.kill(pid, signal.SIGSTOP)
        wait_for_state(pid, "T")
        assert "stopped or traced already" in reason(take_stack(who(pid)))
        assert state(pid) == "T"
        assert all("--nonblocking" in call for call in calls(fake_py_spy))


def test_a_tool_that_hangs_is_given_up_at_the_deadline(fake_py_spy: Path) -> None:
    script(fake_py_spy, "sleep 60")
    began = time.monotonic()
    assert "not done after" in reason(take_stack(who(os.getpid()), deadline_s=0.3))
    assert time.monotonic() - began < 5


def test_many_stacks_keep_to_the_time_for_all(fake_py_spy: Path) -> None:
    script(fake_py_spy, "sleep 60")
    began = time.monotonic()
    with started(BLOCKED) as pid, started(BLOCKED) as second:
        others = [who(number) for number in {os.getpid(), os.getppid(), 1}]
        taken = take_stacks([who(pid), who(second), *others], deadline_s=0.4, total_s=0.5)
    assert time.monotonic() - began < 10
    assert len(taken) == 2 + len(others)
    assert all(isinstance(stack, Missing) for stack in taken.values())


def test_several_stacks_come_back_by_pid() -> None:
    with started(BLOCKED) as first, started(BLOCKED.replace("load_shard", "save")) as second:
        wait_for_state(first, "S")
        wait_for_state(second, "S")
        taken = take_stacks([who(first), who(second)], deadline_s=10)
        assert (names(taken[first])[0], names(taken[second])[0]) == ("load_shard", "save")


def test_without_py_spy_the_reason_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install py-spy" in reason(take_stack(who(os.getpid())))
