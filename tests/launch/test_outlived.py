"""What stays of a run directory while a process of the job lives on, and that it goes with it."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rankpatrol.cli.jobs import run_dir_of
from rankpatrol.core.errors import BadInput
from rankpatrol.launch import outlived
from rankpatrol.launch.outlived import NOTE, retire, survivors
from rankpatrol.launch.rundir import RankPlace, RunDir
from rankpatrol.system.process import identify

# A session leader that leaves a child in its session, and ends.
LEAVES = "import os, signal; child = os.fork(); child or signal.pause(); print(child, flush=True)"


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(outlived, "run_dir_folders", lambda: [str(tmp_path)])
    monkeypatch.setattr(outlived, "_LEAVING_S", 0.0)
    made = RunDir(tmp_path / "rankpatrol-test")
    for room in ("ranks", "exits", "spool", "shims"):
        (made.path / room).mkdir(parents=True)
    (made.path / "job.json").write_text("{}")
    (made.path / "answer.json").write_text("{}")
    return made


@pytest.fixture
def left(run_dir: RunDir) -> Iterator[int]:
    """A process in the session of a rank that is gone."""
    rank = subprocess.Popen([sys.executable, "-c", LEAVES], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert rank.stdout is not None
    with rank.stdout:
        pid = int(rank.stdout.readline())
    run_dir.write("ranks/0.0.json", place(rank.pid, identify(rank.pid).start_ticks))
    rank.wait()
    pidfd = os.pidfd_open(pid)
    yield pid
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def place(pid: int, start_ticks: int) -> RankPlace:
    numbers = dict.fromkeys(("rank", "local_rank", "attempt", "torchrun_restarts", "scheduler_restarts", "shim_pid", "shim_start_ticks"), 0)
    return RankPlace(world_size=1, node=os.uname().nodename, pid=pid, start_ticks=start_ticks, started_unix_s=time.time(), **numbers)


def test_a_job_that_left_nobody_leaves_nothing(run_dir: RunDir) -> None:
    run_dir.write("ranks/0.0.json", place(4_194_303, 1))
    assert retire(run_dir) == ()
    assert not run_dir.path.exists()


def test_while_somebody_lives_the_records_stay(run_dir: RunDir, left: int) -> None:
    assert retire(run_dir) == (left,)
    assert sorted(path.name for path in run_dir.path.iterdir()) == ["exits", "job.json", NOTE, "ranks"]


def test_they_go_at_a_later_jobs_end(run_dir: RunDir, left: int, tmp_path: Path) -> None:
    retire(run_dir)
    pidfd = os.pidfd_open(left)
    os.kill(left, signal.SIGKILL)
    select.select([pidfd], [], [], 10)  # readable once it has ended (pidfd_open(2)), whether or not it is reaped
    os.close(pidfd)
    retire(RunDir(tmp_path / "another"))
    assert not run_dir.path.exists()


@pytest.mark.parametrize("changes", [{"node": "elsewhere"}, {"pid_namespace": "pid:[1]"}])
def test_the_records_of_another_world_are_left_alone(run_dir: RunDir, left: int, tmp_path: Path, changes: dict[str, str]) -> None:
    retire(run_dir)
    note = run_dir.read(NOTE, outlived.Outlived)
    run_dir.write(NOTE, msgspec.structs.replace(note, **changes))
    run_dir.write("ranks/0.0.json", place(4_194_303, 1))
    retire(RunDir(tmp_path / "another"))
    assert run_dir.path.exists()


def test_a_session_number_that_another_leads_now_is_no_survivor() -> None:
    leads = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    with leads:  # its input ends with the block, and so does it
        leader = identify(leads.pid)
        assert leader is not None
        assert survivors([place(leader.pid, leader.start_ticks)]) == (leader.pid,)
        assert survivors([place(leader.pid, leader.start_ticks - 5)]) == ()


def test_a_job_that_is_over_can_no_longer_be_paused(run_dir: RunDir, left: int, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job/job.json").write_bytes(msgspec.json.encode({"run_dir": str(run_dir.path)}))
    assert run_dir_of(tmp_path / "job").path == run_dir.path
    retire(run_dir)
    with pytest.raises(BadInput, match="is over"):
        run_dir_of(tmp_path / "job")
