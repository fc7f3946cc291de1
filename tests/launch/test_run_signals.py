"""`rankpatrol run` between the user and CMD: each signal arrives once, and neither agent nor parent takes CMD along."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_subjects import gone, wait_for, watched

from rankpatrol.launch.rundir import OrderedEnd, RunDir
from rankpatrol.launch.shim.kernel import descendants

RUN = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job"]
# Counts what it hears until nothing has come for a while after the first, or until it is told to leave.
COUNTS = """
import os, signal, sys, time
signal.alarm(30)
heard, last = [], [0.0]
def hear(number, _):
    heard.append(number)
    last[0] = time.monotonic()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, hear)
with open("pid", "w") as pid:
    pid.write(f"{os.getpid()} ")
while not os.path.exists("leave") and not (heard and time.monotonic() - last[0] > 0.35):
    time.sleep(0.02)
with open("heard", "w") as out:
    out.write(" ".join(signal.Signals(number).name for number in heard))
sys.exit(9)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextmanager
def running(*, session: bool = False, env: Mapping[str, str] | None = None) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
    """`rankpatrol run` over the counting command, in a process group or a session of its own, once both can hear."""
    process = subprocess.Popen(
        [*RUN, sys.executable, "-c", COUNTS],
        process_group=None if session else 0,
        start_new_session=session,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    try:
        counted = pid_of_command()
        wait_for(lambda: agent_of(process.pid))
        yield process, counted
        assert process.wait(10) == 9
    finally:
        Path("leave").touch()
        process.wait(15)


def pid_of_command() -> int:
    return wait_for(lambda: int(text) if Path("pid").exists() and (text := Path("pid").read_text()).endswith(" ") else None)


def heard() -> list[str]:
    return Path("heard").read_text().split()


def agent_of(parent: int) -> int | None:
    """The pid of the agent, once it is one."""
    for kin in descendants(parent):
        with contextlib.suppress(OSError):  # it has just ended
            if b"rankpatrol.agent" in Path(f"/proc/{kin.pid}/cmdline").read_bytes():
                return kin.pid
    return None


ALL = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


def test_each_signal_to_the_parent_reaches_the_command_once() -> None:
    with running() as (parent, _):
        for name in ALL:
            parent.send_signal(getattr(signal, name))
    assert sorted(heard()) == sorted(ALL)


def test_each_signal_to_the_whole_group_reaches_the_command_once() -> None:
    """timeout(1), Slurm and `kill %1` signal groups; torchrun breaks off its own shutdown at the second signal."""
    with running() as (parent, _):
        for name in ALL:
            os.killpg(parent.pid, getattr(signal, name))
    assert sorted(heard()) == sorted(ALL)


def test_the_witness_tells_what_the_group_heard_from_what_we_heard_alone() -> None:
    code = """
import os, signal, time
from rankpatrol.launch.witness import GroupWitness
USR1, USR2 = signal.SIGUSR1, signal.SIGUSR2
signal.pthread_sigmask(signal.SIG_BLOCK, [USR1, USR2])
witness = GroupWitness([USR1, USR2])
def heard(send, number):
    send(number)
    return witness.heard(number)
group, alone = (lambda number: os.killpg(0, number)), signal.raise_signal
print(heard(group, USR1), heard(alone, USR1), heard(group, USR2), heard(alone, USR1))
group(USR1)  # nobody asks for this one
time.sleep(0.25)
print(heard(alone, USR1))
witness.dismiss()
print(heard(group, USR1))
"""
    done = subprocess.run([sys.executable, "-c", code], process_group=0, capture_output=True, timeout=15, check=True, text=True)
    assert done.stdout.split() == ["True", "False", "True", "False", "False", "False"]


def in_terminal(program: str = COUNTS) -> tuple[int, int]:
    """`rankpatrol run` as the leader of a terminal's session (docker run -t): its pid, and the terminal's other side."""
    pid, screen = pty.fork()
    if pid == 0:
        os.execv(RUN[0], [*RUN, sys.executable, "-c", program])
    pid_of_command()
    return pid, screen


def test_a_key_reaches_the_command_once() -> None:
    pid, screen = in_terminal()
    os.write(screen, b"\x03\x1c")
    assert ended(pid, screen) == 9
    assert sorted(heard()) == ["SIGINT", "SIGQUIT"]


def test_a_hang_up_reaches_the_command_though_the_kernel_tells_the_leader_alone() -> None:
    pid, screen = in_terminal()
    os.close(screen)
    assert ended(pid, None) == 9
    assert heard() == ["SIGHUP"]


def ended(pid: int, screen: int | None) -> int:
    """The exit code of a terminal's program, its output read meanwhile."""
    until = time.monotonic() + 15
    while (done := os.waitpid(pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < until
        if screen is None:
            time.sleep(0.02)
        elif select.select([screen], [], [], 0.05)[0]:
            try:
                os.read(screen, 65536)
            except OSError:
                time.sleep(0.02)
    if screen is not None:
        os.close(screen)
    return os.waitstatus_to_exitcode(done[1])


def test_what_nohup_ignores_stays_ignored() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with running() as (parent, _):
            os.killpg(parent.pid, signal.SIGHUP)
            parent.send_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert heard() == ["SIGUSR1"]


def test_an_order_to_end_is_written_down_for_the_agent() -> None:
    with running() as (parent, _):
        run_dir = RunDir(Path(json.loads(Path("job/job.json").read_text())["run_dir"]))
        parent.send_signal(signal.SIGUSR1)
        parent.send_signal(signal.SIGTERM)
        order = wait_for(lambda: run_dir.read("ending.json", OrderedEnd))
    assert order.signal == "SIGTERM"
    assert not run_dir.path.exists()


def test_a_run_directory_removed_under_way_harms_nobody() -> None:
    with running() as (parent, _):
        RunDir(Path(json.loads(Path("job/job.json").read_text())["run_dir"])).remove()
        parent.send_signal(signal.SIGTERM)
    assert heard() == ["SIGTERM"]


def test_a_killed_agent_is_started_again() -> None:
    with running() as (parent, _):
        first = agent_of(parent.pid)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: agent if (agent := agent_of(parent.pid)) not in {None, first} else None)
        parent.send_signal(signal.SIGTERM)
    assert '"job_ended"' in Path("job/events.jsonl").read_text().splitlines()[-1]


def test_an_agent_killed_right_before_the_end_still_has_its_last_words() -> None:
    with running() as (parent, command):
        agent = agent_of(parent.pid)
        assert agent is not None
        os.kill(parent.pid, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        Path("leave").touch()
        with watched(command) as (pidfd,):
            assert gone(pidfd)
        os.kill(parent.pid, signal.SIGCONT)
    assert '"job_ended"' in Path("job/events.jsonl").read_text().splitlines()[-1]


def test_a_killed_parent_leaves_the_command_and_no_witness() -> None:
    process = subprocess.Popen([*RUN, sys.executable, "-c", COUNTS], stderr=subprocess.DEVNULL)
    command = pid_of_command()
    wait_for(lambda: agent_of(process.pid))
    others = [kin.pid for kin in descendants(process.pid) if kin.pid != command]
    with watched(command, *others) as (pidfd, *rest):
        process.kill()
        process.wait()
        assert not gone(pidfd, 0.3)
        os.kill(command, signal.SIGUSR1)
        assert gone(pidfd)
        assert heard() == ["SIGUSR1"]
        assert all(gone(other) for other in rest)
    RunDir(Path(json.loads(Path("job/job.json").read_text())["run_dir"])).remove()
