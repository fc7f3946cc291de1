"""Stacks that a rank tells itself on SIGURG, for whom nobody may trace; and that it is left alone where the signal is somebody's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from probe_subjects import Rank, plain_environment, ranked

from rankpatrol.collect.marks import offers_stacks
from rankpatrol.collect.told_stacks import ask_stack
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Stack
from rankpatrol.system.process import identify

STANDS = """
import threading, sys
def loads():
    print("ready", flush=True)
    sys.stdin.readline()
def waits_in_a_thread():
    threading.Event().wait()
threading.Thread(target=waits_in_a_thread, daemon=True).start()
loads()
"""


def told(rank: Rank) -> Stack:
    found = ask_stack(rank.pipe().rank, rank.pipe(), deadline_s=15.0)
    assert isinstance(found, Stack), found
    return found


def refusal(rank: Rank) -> str:
    found = ask_stack(rank.pipe().rank, rank.pipe(), deadline_s=5.0)
    assert isinstance(found, Missing)
    return found.reason


def test_a_rank_tells_the_stacks_of_all_its_threads_and_goes_on(tmp_path: Path) -> None:
    with ranked(["-c", STANDS], tmp_path) as rank:
        assert rank.says() == "ready"
        for _ in range(3):
            stack = told(rank)
            main = stack.main_thread()
            assert main is not None
            assert [frame.name for frame in main.frames] == ["loads", "<module>"]
            assert main.frames[0].line in {4, 5}
            assert any("waits_in_a_thread" in [frame.name for frame in thread.frames] for thread in stack.threads)
            assert stack.told
        rank.go_on()
        assert rank.end() == ("", "")
        assert rank.process.returncode == 0


def test_a_rank_whose_python_is_held_in_c_tells_them_as_well(tmp_path: Path) -> None:
    """The GIL is never given up: nothing in Python would answer."""
    holds = "import ctypes; print('ready', flush=True)\ndef in_c(): ctypes.PyDLL(None).pause()\nin_c()"
    with ranked(["-c", holds], tmp_path) as rank:
        assert rank.says() == "ready"
        main = told(rank).main_thread()
        assert main is not None
        # pause(2) itself ends at the signal: the rank is free again, and nothing was asked of it but that.
        assert main.frames[0].name in {"in_c", "<module>"}


def test_a_rank_that_spins_tells_where(tmp_path: Path) -> None:
    spins = "def endless():\n    print('ready', flush=True)\n    while True: pass\nendless()"
    with ranked(["-c", spins], tmp_path) as rank:
        rank.says()
        main = told(rank).main_thread()
        assert main is not None
        assert main.frames[0].name == "endless"
        assert main.frames[0].line in {2, 3}, "it has said that it is ready, and loops"


FORKS = """
import os, sys
child = os.fork()
if child == 0:
    def reads_a_shard():
        print(os.getpid(), flush=True)
        sys.stdin.readline()
    reads_a_shard()
    os._exit(0)
os.wait()
"""


def test_a_forked_child_tells_its_own_and_one_that_was_started_anew_is_not_asked(tmp_path: Path) -> None:
    with ranked(["-c", FORKS], tmp_path) as rank:
        child = identify(int(rank.says()))
        assert child is not None
        stack = ask_stack(child, rank.pipe(), deadline_s=15.0)
        assert isinstance(stack, Stack), stack
        assert [frame.name for frame in stack.threads[-1].frames] == ["reads_a_shard", "<module>"]
        rank.go_on()
    spawns = "import subprocess, sys\nprint(subprocess.Popen([sys.executable, '-c', 'input()']).pid, flush=True); sys.stdin.readline()"
    with ranked(["-c", spawns], tmp_path) as rank:
        child = identify(int(rank.says()))
        assert child is not None
        found = ask_stack(child, rank.pipe())
        assert isinstance(found, Missing)
        assert "no copy of the rank" in found.reason
        rank.go_on()


@pytest.mark.parametrize(
    "takes",
    [
        "import signal; signal.signal(signal.SIGURG, lambda *_: print('mine', flush=True))",
        "import signal; signal.signal(signalnum=signal.SIGURG, handler=signal.SIG_IGN)",
        "import faulthandler, signal; faulthandler.register(signal.SIGURG, file=sys.stderr)",
        "import faulthandler, signal; faulthandler.unregister(signal.SIGURG)",
        "import asyncio, signal; loop = asyncio.new_event_loop(); loop.add_signal_handler(signal.SIGURG, print); loop.close()",
    ],
)
def test_a_training_that_takes_the_signal_has_it_to_itself(tmp_path: Path, takes: str) -> None:
    with ranked(["-c", f"import sys\n{takes}\nprint('ready', flush=True); sys.stdin.readline()"], tmp_path) as rank:
        assert rank.says() == "ready"
        assert "offers no stacks" in refusal(rank)
        rank.go_on()
        assert rank.end() == ("", "")


def test_a_signal_that_the_launcher_ignores_stays_ignored(tmp_path: Path) -> None:
    ignoring = tmp_path / "ignoring"
    ignoring.write_text(f"#!/bin/sh\ntrap '' URG\nexec {sys.executable} \"$@\"\n")
    ignoring.chmod(0o755)
    with ranked(["-c", STANDS], tmp_path, python=str(ignoring)) as rank:
        assert rank.says() == "ready"
        assert "offers no stacks" in refusal(rank)
        rank.go_on()


def test_a_stopped_rank_is_not_asked_and_hears_of_it_no_later(tmp_path: Path) -> None:
    with ranked(["-c", STANDS], tmp_path) as rank:
        rank.says()
        rank.process.send_signal(19)
        os.waitid(os.P_PID, rank.process.pid, os.WSTOPPED)
        assert "stopped or traced" in refusal(rank)
        rank.process.send_signal(18)
        rank.go_on()
        assert rank.end() == ("", "")


def test_of_two_who_ask_at_once_each_has_a_whole_answer(tmp_path: Path) -> None:
    ask = f"""
import sys
sys.path[:0] = {sys.path!r}
import msgspec
from rankpatrol.collect.told_stacks import StackPipe, ask_stack
from rankpatrol.core.snapshot import Stack
pipe = msgspec.json.decode(sys.argv[1], type=StackPipe)
for _ in range(5):
    found = ask_stack(pipe.rank, pipe, 10.0)
    assert isinstance(found, Stack) and found.main_thread().frames[0].name == "loads", found
"""
    import msgspec

    with ranked(["-c", STANDS], tmp_path) as rank:
        rank.says()
        words = [sys.executable, "-c", ask, msgspec.json.encode(rank.pipe()).decode()]
        both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        assert [one.communicate(timeout=15)[1] for one in both] == ["", ""]
        assert [one.returncode for one in both] == [0, 0]
        rank.go_on()


def test_more_than_the_pipe_holds_is_no_stack(tmp_path: Path) -> None:
    """A hundred threads of a hundred frames."""
    deep = """
import threading, sys
sys.setrecursionlimit(500)
held = threading.Barrier(91)
def a_function_with_a_long_name_so_that_a_hundred_frames_of_it_take_much_room_in_the_pipe_of_stacks(depth):
    if depth: return a_function_with_a_long_name_so_that_a_hundred_frames_of_it_take_much_room_in_the_pipe_of_stacks(depth - 1)
    held.wait()
    threading.Event().wait()
for _ in range(90):
    threading.Thread(
        target=a_function_with_a_long_name_so_that_a_hundred_frames_of_it_take_much_room_in_the_pipe_of_stacks, args=(99,), daemon=True
    ).start()
held.wait()
print("ready", flush=True)
sys.stdin.readline()
"""
    with ranked(["-c", deep], tmp_path) as rank:
        assert rank.says() == "ready"
        why = refusal(rank)
        assert "more than its pipe holds" in why or "in time" in why
        rank.go_on()


def test_without_a_pipe_the_marks_are_there_and_stacks_are_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("rankpatrol.launch.shim.marks.make_stacks", lambda: (None, None))
        with ranked(["-c", STANDS], tmp_path) as rank:
            rank.says()
            shim = identify(os.getpid())
            assert shim is not None
            assert rank.held.stacks_fd is None
            assert not offers_stacks(shim, rank.held.marks_fd)
            assert rank.seen().phase == "initialisation"
            rank.go_on()


# The alternate stack's flags (sigaltstack(2)): 2 where there is none.
FLAGS = """
import ctypes
class S(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
def flags():
    seen = S()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(seen))
    return seen.flags
"""


def test_signals_that_come_at_once_have_the_stack_they_would_have_without_us(tmp_path: Path) -> None:
    """Python's handlers run on faulthandler's alternate stack where there is one, and a few frames with wide registers overflow it."""
    many = f"""{FLAGS}
import os, signal
numbers = [1, 2, 3, 10, 12, 15, 16, 26, 27, 28, *range(34, 50)]
for number in numbers:
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
for number in numbers:
    os.kill(os.getpid(), number)
signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
print(flags(), flush=True)
input()
"""
    with ranked(["-c", many], tmp_path) as rank:
        assert rank.says() == "2"
        told(rank)
        rank.go_on()
        rank.end()
        assert rank.process.returncode == 0


def test_who_enables_faulthandler_has_its_stack(tmp_path: Path) -> None:
    code = f"{FLAGS}\nimport faulthandler; before = flags(); faulthandler.enable(); print(before, flags())"
    with ranked(["-c", code], tmp_path) as rank:
        assert rank.end() == ("2 0\n", "")
    with ranked(["-X", "faulthandler", "-c", FLAGS + "print(flags())"], tmp_path) as rank:
        assert rank.end() == ("0\n", "")


def test_a_python_without_ctypes_has_marks_and_tells_no_stacks(tmp_path: Path) -> None:
    (tmp_path / "ctypes.py").write_text("raise ImportError('no libffi')")
    with ranked(["-c", STANDS], tmp_path, env=plain_environment(PYTHONPATH=str(tmp_path))) as rank:
        assert rank.says() == "ready"
        assert "offers no stacks" in refusal(rank)
        assert rank.seen().phase == "initialisation"
        rank.go_on()
        assert rank.end() == ("", "")


def test_the_signal_is_not_left_to_the_ranks_children(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run(['grep', '-E', 'SigCgt|SigIgn', '/proc/self/status'], check=True)"
    with ranked(["-c", code], tmp_path) as rank:
        seen = rank.end()[0]
    assert all(not int(line.split()[1], 16) & (1 << 22) for line in seen.splitlines())
