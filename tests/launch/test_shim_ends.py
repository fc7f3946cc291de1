"""How a rank ends under its shim: on its own, by a signal, by a request, and when it does not want to."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch_subjects import Job, gone, heard_ready, rest_of, shim_command, shimmed, wait_for, watched, words_of

from rankpatrol.launch.shim.deadlines import DEADLINES
from rankpatrol.launch.shim.parent import Shim

LISTENS = """
heard = []
for number in {numbers}:
    signal.signal(number, lambda number, _: heard.append(number))
ready()
until = time.monotonic() + 10
while len(heard) < {count} and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.1)
print(*sorted(heard))
"""
CLEANS_UP = """
def leave(*_):
    time.sleep(0.2)
    print("saved", flush=True)
    sys.exit({code})
signal.signal(signal.{name}, leave)
ready()
forever()
"""
DEAF = """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
ready(os.getpid())
forever()
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGABRT)", -signal.SIGABRT),
        ("signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", -(signal.SIGRTMIN + 3)),
    ],
)
def test_the_ranks_own_end_is_mirrored_and_told(job: Job, code: str, status: int) -> None:
    with shimmed(job, code) as shim:
        assert shim.wait(10) == status
    told = job.exit()
    assert told is not None
    assert (told.exit_status, told.by_request) == (status, False)


def test_the_shim_leaves_no_second_core_file(job: Job, tmp_path: Path) -> None:
    env = job.environment()
    code = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.abort()"
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'ulimit -c unlimited; exec "$PYTHON_EXEC" -c "$0"', "import os, signal\n" + code], env=env, cwd=tmp_path
    )
    assert process.wait(10) == -signal.SIGABRT
    assert list(tmp_path.glob("*core*")) == []


def test_every_signal_arrives_once(job: Job) -> None:
    numbers = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT, signal.SIGWINCH]
    with shimmed(job, LISTENS.format(numbers=[int(number) for number in numbers], count=len(numbers))) as shim:
        heard_ready(shim)
        for number in numbers:
            os.killpg(shim.pid, number)
        assert words_of(shim) == [str(int(number)) for number in sorted(numbers)]
        assert shim.wait(10) == 0


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGTERM", 7), ("SIGINT", 0)])
def test_a_rank_that_handles_a_signal_finishes_its_clean_up(job: Job, name: str, code: int) -> None:
    with shimmed(job, CLEANS_UP.format(name=name, code=code)) as shim:
        heard_ready(shim)
        os.killpg(shim.pid, getattr(signal, name))
        assert rest_of(shim) == b"saved\n"
        assert shim.wait(10) == code


def test_a_stopped_rank_is_ended_by_sigterm(job: Job) -> None:
    with shimmed(job, "ready(os.getpid())\nforever()") as shim:
        (rank,) = heard_ready(shim)
        os.kill(rank, signal.SIGSTOP)
        wait_for(lambda: True if " T " in Path(f"/proc/{rank}/stat").read_text() else None)
        os.killpg(shim.pid, signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("number", "deadlines"), [(signal.SIGTERM, {"kill_s": 0.3}), (signal.SIGINT, {"term_after_int_s": 0.1, "kill_s": 0.3})]
)
def test_a_rank_that_is_deaf_is_killed_at_the_deadline(job: Job, number: signal.Signals, deadlines: dict[str, float]) -> None:
    with shimmed(job, DEAF, deadlines=deadlines) as shim:
        heard_ready(shim)
        began = time.monotonic()
        os.killpg(shim.pid, number)
        assert shim.wait(10) == -signal.SIGKILL
        assert time.monotonic() - began >= 0.3


def test_a_rank_is_ended_before_a_launcher_of_little_patience_ends_its_shim(job: Job) -> None:
    env = job.environment(TORCH_ELASTIC_SHUTDOWN_TIMEOUT="1")
    with shimmed(job, DEAF, env=env) as shim:
        (rank,) = heard_ready(shim)
        with watched(rank) as (pidfd,):
            os.killpg(shim.pid, signal.SIGTERM)
            assert gone(pidfd)
        assert shim.wait(10) == -signal.SIGKILL


def test_a_rank_that_was_reaped_is_signalled_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its exit is held its pid is free, and may be another group's."""
    shim = Shim(os.getppid(), DEADLINES, "")
    shim._rank = subprocess.Popen(["true"], start_new_session=True)
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: signalled.append(group))
    shim._send("SIGTERM")
    assert signalled == [shim._rank.pid] * 2
    shim._rank.wait()
    shim._send("SIGTERM")
    assert signalled == [shim._rank.pid] * 2
    shim._selector.close()


def test_a_rank_deaf_to_sigint_alone_gets_sigterm_before_it_is_killed(job: Job) -> None:
    code = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + CLEANS_UP.format(name="SIGTERM", code=5)
    with shimmed(job, code, deadlines={"term_after_int_s": 0.1, "kill_s": 10}) as shim:
        heard_ready(shim)
        os.killpg(shim.pid, signal.SIGINT)
        assert shim.wait(10) == 5


def test_a_signal_during_the_start_ends_the_rank(job: Job) -> None:
    with shimmed(job, "forever()") as shim:
        wait_for(lambda: True if any((job.run_dir.path / "claims").iterdir()) else None)
        os.killpg(shim.pid, signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_meant_for_the_training_does_not_end_a_shim_that_waits_for_its_checkpoint(job: Job, number: signal.Signals) -> None:
    job.write(checkpoints="/checkpoints")
    with shimmed(job, "forever()", deadlines={"resume_s": 1.0}, env=job.environment(restarts=1)) as shim:
        wait_for(lambda: True if any((job.run_dir.path / "claims").iterdir()) else None)
        os.killpg(shim.pid, number)
        assert shim.wait(10) == -number  # the rank has no handler: it dies of it, as it would without us


def test_what_our_user_ignores_stays_ignored(job: Job) -> None:
    code = "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True)\nready()\nforever()"
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with shimmed(job, code) as shim:
            assert words_of(shim) == ["True"]
            heard_ready(shim)
            os.killpg(shim.pid, signal.SIGHUP)
            os.killpg(shim.pid, signal.SIGTERM)
            assert shim.wait(10) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_the_exit_status_survives_an_ignored_sigchld(job: Job) -> None:
    command = ["/bin/sh", "-c", "trap '' CHLD; exec \"$PYTHON_EXEC\" -c 'raise SystemExit(3)'"]
    assert subprocess.run(command, env=job.environment(), timeout=10, check=False).returncode == 3


def test_the_ranks_signal_mask_is_the_launchers(job: Job) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        with shimmed(job, "print(*sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), 'end')") as shim:
            assert words_of(shim) == [str(int(signal.SIGUSR2)), "end"]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_request_ends_the_rank_and_never_counts_as_finished(job: Job) -> None:
    with shimmed(job, CLEANS_UP.format(name="SIGTERM", code=0)) as shim:
        heard_ready(shim)
        assert job.ask({"do": "end", "grace_s": 5}) == {"ok": True}
        assert rest_of(shim) == b"saved\n"
        assert shim.wait(10) == -signal.SIGTERM
    told = job.exit()
    assert told is not None
    assert (told.exit_status, told.by_request) == (0, True)


def test_a_request_kills_a_deaf_rank_after_its_grace(job: Job) -> None:
    with shimmed(job, DEAF) as shim:
        (rank,) = heard_ready(shim)
        with watched(rank) as (pidfd,):
            assert job.ask({"do": "end", "grace_s": 0.2}) == {"ok": True}
            assert gone(pidfd)
        assert shim.wait(10) == -signal.SIGKILL


def test_a_request_never_moves_the_launchers_deadline_away(job: Job) -> None:
    with shimmed(job, DEAF, deadlines={"kill_s": 0.5}) as shim:
        heard_ready(shim)
        os.killpg(shim.pid, signal.SIGTERM)
        job.ask({"do": "end", "grace_s": 3000})
        assert shim.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(("word", "code"), [("/no/such/python", 127), ("/etc/passwd", 126)])
def test_a_rank_that_cannot_be_started_says_so_with_the_shells_code(job: Job, word: str, code: int) -> None:
    env = job.environment(RANKPATROL_USER_PYTHON_EXEC=word)
    done = subprocess.run(shim_command(["-c", "pass"]), env=env, timeout=10, check=False, capture_output=True)
    assert done.returncode == code
    assert f"cannot start {word}".encode() in done.stderr
