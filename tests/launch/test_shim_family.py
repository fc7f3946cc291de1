"""Who goes when: launcher, shim, rank, and what the rank had started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_subjects import (
    PRELUDE,
    QUICK,
    QUICK_SHIM,
    STANDIN,
    Job,
    gone,
    heard_ready,
    quick_python,
    shimmed,
    wait_for,
    watched,
    words_of,
)

from rankpatrol.launch.parent import PYTHON_SHIM
from rankpatrol.launch.shim import kernel
from rankpatrol.launch.shim.kernel import Kin, descendants, reap, signal_exactly, start_ticks

# Two stuck children: one blocked in open() of a FIFO in a session of its own, one double-forked and deaf to SIGTERM.
STUCK = """
def child(double, then):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if double and os.fork():
            os._exit(0)
        signal.alarm(30)
        os.write(write, b"%d\\n" % os.getpid())
        then()
        os._exit(0)
    return int(os.read(read, 20))
def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
family = [child(False, lambda: open(sys.argv[1])), child(True, deaf)]
"""


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(3)"])
def test_a_failed_rank_leaves_no_descendant_when_its_shim_ends(job: Job, fifo: str, end: str) -> None:
    with shimmed(job, STUCK + f"ready(*family)\nsys.stdin.read()\n{end}", fifo, deadlines=QUICK) as shim:
        with watched(*heard_ready(shim)) as pidfds:
            assert shim.wait(10) in {-signal.SIGKILL, 3}
            assert [gone(pidfd, 0) for pidfd in pidfds] == [True, True]
        assert job.exit() is not None


def test_a_requested_end_leaves_no_descendant_even_where_the_rank_says_all_is_well(job: Job, fifo: str) -> None:
    code = STUCK + "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\nready(*family)\nforever()"
    with shimmed(job, code, fifo, deadlines=QUICK) as shim, watched(*heard_ready(shim)) as pidfds:
        job.ask({"do": "end", "grace_s": 5})
        assert shim.wait(10) == -signal.SIGTERM
        assert [gone(pidfd, 0) for pidfd in pidfds] == [True, True]


@pytest.mark.parametrize(
    "handler", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))"]
)
def test_nobody_outlives_a_launcher_that_was_killed(job: Job, fifo: str, tmp_path: Path, handler: str) -> None:
    code = STUCK + f"{handler}\nready(*family, os.getpid(), os.getppid())\nforever()"
    launcher = subprocess.Popen(
        [sys.executable, str(STANDIN), "1", "-c", PRELUDE + code, fifo],
        env=job.environment(PYTHON_EXEC=quick_python(tmp_path) if handler else str(PYTHON_SHIM)),
        bufsize=0,
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    with watched(*heard_ready(launcher)) as pidfds:
        launcher.kill()
        until = time.monotonic() + 5
        assert all(gone(pidfd, max(0.0, until - time.monotonic())) for pidfd in pidfds)
    launcher.wait()
    launcher.stdout.close()


def test_a_launcher_killed_in_the_middle_of_a_patient_end_cuts_it_short(job: Job, tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\nready(os.getpid(), os.getppid())\nforever()"
    launcher = subprocess.Popen(
        [sys.executable, str(STANDIN), "1", "-c", PRELUDE + code],
        env=job.environment(PYTHON_EXEC=quick_python(tmp_path)),
        bufsize=0,
        stdout=subprocess.PIPE,
    )
    assert launcher.stdout is not None
    with watched(*heard_ready(launcher)) as pidfds:
        launcher.terminate()
        assert words_of(launcher) == ["told"]
        launcher.kill()
        assert all(gone(pidfd, 5) for pidfd in pidfds)
    launcher.wait()
    launcher.stdout.close()


def test_a_lost_launcher_is_noticed_where_sigterm_is_ignored(job: Job, tmp_path: Path) -> None:
    code = "print(os.getpid(), os.getppid(), flush=True)\nsignal.pause()"
    shim = ["import os, signal, subprocess, sys, json", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
    shim += [
        f"command = [sys.executable, '-I', '-S', {str(QUICK_SHIM)!r}, str(os.getpid()), json.dumps({{'lost_launcher_kill_s': 0.1}})]",
        f"subprocess.Popen([*command, sys.executable, '-c', {('import os, signal; signal.alarm(30); ' + code)!r}], start_new_session=True)",
        "signal.pause()",
    ]
    launcher = subprocess.Popen([sys.executable, "-c", "\n".join(shim)], env=job.environment(), bufsize=0, stdout=subprocess.PIPE)
    assert launcher.stdout is not None
    with watched(*(int(word) for word in words_of(launcher))) as pidfds:
        launcher.kill()
        assert all(gone(pidfd, 5) for pidfd in pidfds)
    launcher.wait()
    launcher.stdout.close()


def test_no_rank_is_started_for_a_launcher_that_is_already_gone(job: Job) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    command = [sys.executable, "-I", "-S", str(QUICK_SHIM), str(dead.pid), "{}", "echo", "started"]
    done = subprocess.run(command, env=job.environment(), capture_output=True, timeout=10, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_killed_shim_takes_its_rank_along(job: Job) -> None:
    with shimmed(job, "ready(os.getpid())\nforever()") as shim, watched(*heard_ready(shim)) as (rank,):
        shim.kill()
        assert gone(rank, 5)


def test_a_child_that_the_rank_leaves_after_a_good_end_is_spared(job: Job) -> None:
    code = "if os.fork() == 0:\n    os.setsid()\n    ready(os.getpid())\n    os.close(1)\n    forever()\nsys.stdin.read()\ntime.sleep(0.1)"
    with shimmed(job, code, deadlines=QUICK) as shim, watched(*heard_ready(shim)) as (child,):
        assert shim.wait(10) == 0
        assert not gone(child, 0.2)


def test_of_those_a_rank_leaves_after_a_good_end_only_stuck_loaders_are_ended(job: Job) -> None:
    code = """
names = [b"pt_data_worker", b"uploader"]
read, write = os.pipe()
for name in names:
    if os.fork() == 0:
        os.setsid()
        open("/proc/self/comm", "wb").write(name)
        os.write(write, b"%d\\n" % os.getpid())
        os.close(1)
        forever()
    ready_line = os.read(read, 20)
    names[names.index(name)] = int(ready_line)
ready(*names)
sys.stdin.read()
"""
    with shimmed(job, code, deadlines={**QUICK, "loaders_leave_s": 0.1}) as shim, watched(*heard_ready(shim)) as (loader, uploader):
        assert shim.wait(10) == 0
        assert gone(loader, 0)
        assert not gone(uploader, 0.1)
        signal.pidfd_send_signal(uploader, signal.SIGKILL)


def test_orphans_that_end_while_the_rank_lives_leave_no_zombies(job: Job) -> None:
    code = "for _ in range(20):\n    if os.fork() == 0:\n        os.fork()\n        os._exit(0)\n    os.wait()\nready()\nforever()"
    with shimmed(job, code) as shim:
        heard_ready(shim)
        children = Path(f"/proc/{shim.pid}/task/{shim.pid}/children")
        wait_for(lambda: True if len(children.read_text().split()) == 1 else None)
        os.killpg(shim.pid, signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


def test_the_ranks_status_is_its_own_though_orphans_end_with_it(job: Job) -> None:
    code = "for _ in range(30):\n    if os.fork() == 0:\n        os.setsid()\n        os._exit(9)\nos._exit(4)"
    with shimmed(job, code) as shim:
        assert shim.wait(10) == 4


# The parts.


def test_reaping_spares_the_one_whose_status_is_asked_for_elsewhere() -> None:
    spared, other = (subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) for code in (5, 6))
    for process in (spared, other):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    reap(spare=spared.pid)
    assert spared.wait() == 5
    reap()
    with pytest.raises(ChildProcessError):
        os.waitpid(other.pid, os.WNOHANG)
    other.wait()


def test_a_process_that_took_over_a_pid_is_not_signalled() -> None:
    other = subprocess.Popen(["sleep", "30"])
    ticks = start_ticks(other.pid)
    assert ticks is not None
    signal_exactly(Kin(other.pid, ticks - 1), signal.SIGKILL)
    assert other.poll() is None
    signal_exactly(Kin(other.pid, ticks), signal.SIGKILL)
    assert other.wait(5) == -signal.SIGKILL
    signal_exactly(Kin(other.pid, ticks), signal.SIGKILL)  # gone: nothing happens


def test_without_pidfds_the_pid_is_checked_right_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    test_a_process_that_took_over_a_pid_is_not_signalled()


def test_a_child_older_than_its_parent_is_nobodys_descendant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While /proc is read, a parent may end and its pid be taken over."""
    stats = {10: ("S", 1, 100), 11: ("S", 10, 150), 12: ("S", 11, 140), 13: ("Z", 10, 200), 14: ("S", 10, 100)}
    monkeypatch.setattr(os, "listdir", lambda _: ["self", *map(str, stats)])
    monkeypatch.setattr(kernel, "_stat_fields", lambda pid: [stats[pid][0], str(stats[pid][1]), *["0"] * 15, "1", "0", str(stats[pid][2])])
    assert descendants(10) == [Kin(11, 150), Kin(14, 100)]


def test_a_zombie_whose_threads_run_on_is_alive() -> None:
    """Its first thread has ended, the others hold all it had."""
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(30,)).start()
print(1, flush=True)
ctypes.CDLL(None).pthread_exit(0)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    wait_for(lambda: True if ") Z " in Path(f"/proc/{process.pid}/stat").read_text() else None)
    assert process.pid in [kin.pid for kin in descendants(os.getpid())]
    process.kill()
    process.wait(5)
    process.stdout.close()


def test_a_sweep_ends_those_born_meanwhile() -> None:
    breeds = """
import os, signal
signal.alarm(30)
signal.signal(signal.SIGTERM, lambda *_: os.fork())
print(1, flush=True)
while True:
    signal.pause()
"""
    code = f"""
import subprocess, sys, os
from rankpatrol.launch.shim.kernel import PR_SET_CHILD_SUBREAPER, descendants, prctl, sweep
prctl(PR_SET_CHILD_SUBREAPER, 1)
child = subprocess.Popen([sys.executable, "-c", {breeds!r}], stdout=subprocess.PIPE)
child.stdout.readline()
sweep(os.getpid(), 0.5)
print(descendants(os.getpid()))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, timeout=15, check=True, text=True)
    assert done.stdout == "[]\n"
