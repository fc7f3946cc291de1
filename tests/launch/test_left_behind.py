"""Ranks that outlive the command though their user ordered the end: their shims end them, start no others, and touch nobody else."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from launch_subjects import PRELUDE, QUICK, QUICK_SHIM, STANDIN, gone, heard_ready, shimmed, wait_for

from rankpatrol.launch.rundir import LauncherExit, OrderedEnd, RankPlace, RunDir

pytestmark = pytest.mark.timeout(60)
STUBBORN = """
import os, signal, sys, time
signal.alarm(50)
signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(f"started.{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}", "w") as out:
    out.write(str(os.getpid()))
time.sleep(50)
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def shim_for(left_behind_s):
    path = Path("quick-python")
    deadlines = json.dumps({**QUICK, "left_behind_s": left_behind_s})
    path.write_text(f"""#!/bin/sh\nexec {sys.executable} -I -S {QUICK_SHIM} $PPID '{deadlines}' {sys.executable} "$@"\n""")
    path.chmod(0o755)
    return path.absolute()


@contextmanager
def looping(left_behind_s=0.3):
    """`rankpatrol run` over a shell that starts its launcher again and again, with two ranks that ignore Ctrl-C."""
    Path("rank.py").write_text(STUBBORN)
    loop = f"while :; do PYTHON_EXEC={shim_for(left_behind_s)} {sys.executable} {STANDIN} 2 rank.py; done"
    words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", "bash", "-c", loop]
    with Path("said").open("w") as said, subprocess.Popen(words, stderr=said, process_group=0) as process:
        started = [Path(f"started.{rank}.0") for rank in range(2)]
        pids = [wait_for(lambda path=path: int(text) if path.exists() and (text := path.read_text()) else None, 20) for path in started]
        pidfds = [os.pidfd_open(pid) for pid in pids]
        try:
            yield process, pidfds
        finally:
            for pidfd in pidfds:
                if not gone(pidfd, 0):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)
            process.kill()


def run_dir_of_job():
    return RunDir(Path(json.loads(Path("job/job.json").read_text())["run_dir"]))


def test_a_launcher_that_lost_its_shell_keeps_no_rank_after_an_ordered_end():
    """SIGTERM ends the shell at once; nobody tells the launcher below it."""
    with looping() as (run, ranks):
        run_dir = run_dir_of_job()
        wait_for(lambda: len(run_dir.places()) == 2 or None)
        run.send_signal(signal.SIGTERM)
        assert run.wait(45) == 128 + signal.SIGTERM
        assert all(gone(rank, 0) for rank in ranks)
    assert "2 of its ranks have not" in Path("said").read_text()
    assert not run_dir.path.exists()
    # The launcher has restarts left and used them in vain.
    assert sorted(path.name for path in Path().glob("started.*")) == ["started.0.0", "started.1.0"]
    kinds = [json.loads(line) for line in Path("job/events.jsonl").read_text().splitlines()]
    assert [(each["kind"], each["reason"]) for each in kinds if each["kind"].endswith("ended")] == [
        ("attempt_ended", "ordered"),
        ("job_ended", "ordered by SIGTERM"),
    ]


def test_a_command_that_ends_by_itself_or_by_a_hang_up_leaves_its_ranks_alone(job):
    with shimmed(job, "ready(os.getpid()); forever()", deadlines={**QUICK, "left_behind_s": 0.0}) as process:
        heard_ready(process)
        job.run_dir.write("ending.json", OrderedEnd(signal="SIGHUP", at_unix_s=0.0))
        job.run_dir.write("launcher_exit.json", LauncherExit(exit_code=0, ended_unix_s=time.time()))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)  # the shim looks once a second


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_rank_left_behind_gets_a_while_then_sigterm_then_sigkill(job, stubborn):
    code = "signal.signal(signal.SIGTERM, (lambda *_: None) if STUBBORN else (lambda *_: sys.exit(7))); ready(os.getpid()); forever()"
    deadlines = {**QUICK, "left_behind_s": 0.2, "kill_s": 0.5}
    with shimmed(job, code.replace("STUBBORN", str(stubborn)), deadlines=deadlines) as process:
        heard_ready(process)
        job.run_dir.write("ending_for_good.json", OrderedEnd(signal="SIGTERM", at_unix_s=0.0))
        job.run_dir.write("launcher_exit.json", LauncherExit(exit_code=0, ended_unix_s=time.time()))
        assert process.wait(10) == (-signal.SIGKILL if stubborn else 7)
    exited = job.exit()
    assert exited is not None
    assert not exited.by_request


def test_no_rank_is_started_once_all_was_told_to_end(job):
    job.run_dir.write("ending_for_good.json", OrderedEnd(signal="SIGTERM", at_unix_s=0.0))
    job.run_dir.write("launcher_exit.json", LauncherExit(exit_code=0, ended_unix_s=time.time()))
    with shimmed(job, "ready(os.getpid())") as process:
        assert process.wait(10) == -signal.SIGTERM
        assert process.stdout.read() == b""
    assert job.run_dir.read("ranks/0.0.json", RankPlace) is None


@pytest.mark.parametrize(
    ("signals", "for_good"), [(["SIGINT"], False), (["SIGHUP"], False), (["SIGINT", "SIGINT"], True), (["SIGTERM"], True)]
)
def test_only_a_term_or_a_second_interrupt_means_all_of_it(tmp_path, signals, for_good):
    """The command hears each and stays until it is told by a file."""
    code = PRELUDE + (
        "heard = []\nfor name in ('SIGINT', 'SIGHUP', 'SIGTERM'):\n"
        "    signal.signal(getattr(signal, name), lambda number, _: (heard.append(number), open(f'heard.{len(heard)}', 'w').close()))\n"
        "open('ready', 'w').close()\nwhile not os.path.exists('leave'):\n    time.sleep(0.02)\n"
    )
    words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", sys.executable, "-c", code]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, process_group=0) as process:
        try:
            wait_for(lambda: Path("ready").exists() or None)
            run_dir = run_dir_of_job()
            for number, name in enumerate(signals, 1):
                process.send_signal(getattr(signal, name))
                wait_for(lambda number=number: Path(f"heard.{number}").exists() or None)
            assert (run_dir.path / "ending.json").exists()
            assert (run_dir.path / "ending_for_good.json").exists() is for_good
        finally:
            Path("leave").touch()
            process.wait(20)
