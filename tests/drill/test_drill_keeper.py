"""The keeper, over real families of processes."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankpatrol.drill.runner import kept

# Prints its pid once its own child, in a session of its own and deaf to SIGTERM, is up. Then does what it is told.
FAMILY = """
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"],
    start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
{then}
"""
WAIT = "signal.pause()"

DRILL = """
import os, sys, time
from pathlib import Path
from rankpatrol.drill.runner import kept
with kept([sys.executable, "-c", sys.argv[1]], os.environ, left_file=Path(sys.argv[2]), output=None) as keeper:
    keeper.wait()
"""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    return tmp_path / "left.txt"


@pytest.fixture
def pidfds() -> Iterator[list[int]]:
    opened: list[int] = []
    yield opened
    for pidfd in opened:
        os.close(pidfd)


def gone(pidfd: int, within_s: float = 15) -> bool:
    """A pidfd is readable once its process has ended (pidfd_open(2))."""
    return bool(select.select([pidfd], [], [], within_s)[0])


def run_kept(code: str, left: Path, tmp_path: Path) -> tuple[int, str]:
    output = tmp_path / "output.txt"
    with kept([sys.executable, "-c", code], os.environ, left_file=left, output=output) as keeper:
        return keeper.wait(15), output.read_text()


@pytest.mark.parametrize(("code", "expected"), [("pass", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_commands_own_exit_code_is_passed_on(code: str, expected: int, left: Path, tmp_path: Path) -> None:
    assert run_kept(code, left, tmp_path)[0] == expected
    assert left.read_text() == ""


def test_a_command_that_is_not_there_ends_with_127(left: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    with kept(["no-such-command-anywhere"], os.environ, left_file=left, output=output) as keeper:
        assert keeper.wait(10) == 127
    assert "cannot start no-such-command-anywhere" in output.read_text()


def test_what_a_command_leaves_behind_is_told_and_ended(left: Path, tmp_path: Path, pidfds: list[int]) -> None:
    code, said = run_kept(FAMILY.format(then="os._exit(0)"), left, tmp_path)
    assert code == 0
    assert left.read_text().startswith(f"{int(said)} ")
    assert not Path(f"/proc/{int(said)}").exists()


def test_leaving_the_block_ends_the_family_even_where_it_is_deaf_to_sigterm(left: Path, tmp_path: Path, pidfds: list[int]) -> None:
    read, write = os.pipe()
    with kept([sys.executable, "-c", FAMILY.format(then=WAIT)], os.environ, left_file=left, output=Path(f"/dev/fd/{write}")):
        os.close(write)
        with os.fdopen(read) as said:
            pidfds.append(os.pidfd_open(int(said.readline())))
        assert not gone(pidfds[0], within_s=0)
    assert gone(pidfds[0], within_s=0)


def test_a_killed_drill_leaves_nothing_behind(left: Path, pidfds: list[int]) -> None:
    drill = subprocess.Popen([sys.executable, "-c", DRILL, FAMILY.format(then=WAIT), str(left)], stdout=subprocess.PIPE, text=True)
    try:
        assert drill.stdout is not None
        pidfds.append(os.pidfd_open(int(drill.stdout.readline())))
    finally:
        drill.kill()
        drill.wait()
        assert drill.stdout is not None
        drill.stdout.close()
    assert gone(pidfds[0])


def test_ctrl_c_reaches_the_leader_and_its_code_comes_back(left: Path) -> None:
    read, write = os.pipe()
    code = "import signal; signal.signal(2, lambda *_: exit(42)); print('ready', flush=True); signal.pause()"
    with kept([sys.executable, "-c", code], os.environ, left_file=left, output=Path(f"/dev/fd/{write}")) as keeper:
        os.close(write)
        with os.fdopen(read) as said:
            assert said.readline() == "ready\n"
        keeper.send_signal(2)
        assert keeper.wait(10) == 42
