"""Real ranks under real shims, with the test as their launcher; each rank says that it is ready."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.launch.parent import PYTHON_SHIM, launch_environment
from rankpatrol.launch.rundir import Cluster, JobSpec, RankExit, RankPlace, Released, RunDir

T = TypeVar("T")
HERE = Path(__file__).parent
STANDIN = HERE / "standin_launcher.py"
QUICK_SHIM = HERE / "quick_shim.py"

# Whatever of a test's family is missed goes by SIGALRM.
PRELUDE = """
import json, os, signal, subprocess, sys, threading, time
signal.alarm(30)
def ready(*words):
    print("ready", *words, flush=True)
def forever():
    while True:
        signal.pause()
"""


class Job(Record, frozen=True):
    """A job as `rankpatrol run` would have written it down, without its agent; what an agent would release is released beforehand."""

    run_dir: RunDir
    job_dir: Path

    def write(self, *, checkpoints: str | None = None, resumes: bool = False, cluster: Cluster | None = None) -> None:
        self.run_dir.write(
            "job.json",
            JobSpec(
                job="job",
                job_dir=str(self.job_dir),
                command=("train",),
                policy="recover",
                patience_s=180,
                checkpoints=checkpoints,
                resumes=resumes,
                cluster=cluster,
                started_unix_s=0.0,
            ),
        )

    def release(self, *attempts: int) -> None:
        for attempt in attempts:
            self.run_dir.write(f"released.{attempt}.json", Released(at_unix_s=0.0))

    def log(self, *, attempt: int = 0, rank: int = 0) -> Path:
        return self.job_dir / "attempts" / str(attempt) / f"rank{rank}.log"

    def place(self, *, attempt: int = 0, rank: int = 0) -> RankPlace:
        return wait_for(lambda: self.run_dir.read(f"ranks/{attempt}.{rank}.json", RankPlace))

    def exit(self, *, attempt: int = 0, rank: int = 0) -> RankExit | None:
        return self.run_dir.read(f"exits/{attempt}.{rank}.json", RankExit)

    def environment(self, *, rank: int = 0, world_size: int = 1, restarts: int = 0, **more: str) -> dict[str, str]:
        words = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "TORCHELASTIC_RESTART_COUNT": restarts, "MASTER_PORT": 29500}
        lent = launch_environment(self.run_dir, recover=True, max_restarts=None)
        return {**os.environ, **lent, **{name: str(value) for name, value in words.items()}, **more}

    def ask(self, message: object, *, attempt: int = 0, rank: int = 0) -> object:
        """The shim's answer to one message on its control socket."""
        with self.dial(attempt=attempt, rank=rank) as line:
            line.sendall(message if isinstance(message, bytes) else json.dumps(message).encode())
            answer = line.recv(4096)
        return msgspec.json.decode(answer) if answer else None

    def dial(self, *, attempt: int = 0, rank: int = 0) -> socket.socket:
        path = self.run_dir.path / "shims" / f"{attempt}.{rank}.sock"
        wait_for(lambda: path.exists() or None)
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(5)
        try:
            line.connect(str(path))
        except OSError:
            line.close()
            raise
        return line


def shim_command(words: Sequence[str], deadlines: Mapping[str, float] | None = None) -> list[str]:
    """A rank's command as a launcher would start it; with deadlines of our own past python-shim."""
    if deadlines is None:
        return [str(PYTHON_SHIM), *words]
    return [sys.executable, "-I", "-S", str(QUICK_SHIM), str(os.getpid()), json.dumps(deadlines), sys.executable, *words]


QUICK = {"descendants_s": 0.1, "drain_s": 0.2, "lost_launcher_kill_s": 0.5}


def quick_python(folder: Path) -> str:
    """A PYTHON_EXEC whose shim has QUICK deadlines."""
    path = folder / "quick-python"
    path.write_text(f"""#!/bin/sh\nexec {sys.executable} -I -S {QUICK_SHIM} $PPID '{json.dumps(QUICK)}' {sys.executable} "$@"\n""")
    path.chmod(0o755)
    return str(path)


@contextmanager
def shimmed(
    job: Job, code: str, *arguments: str, deadlines: Mapping[str, float] | None = None, env: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """The shim of a rank that runs `code`; its output is a pipe here. What is left of it goes with the test."""
    process = subprocess.Popen(
        shim_command(["-u", "-c", PRELUDE + code, *arguments], deadlines),
        env=job.environment() if env is None else dict(env),
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


def words_of(process: "subprocess.Popen[bytes]") -> list[str]:
    """The next line of its output, in words."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 15)[0], "the rank said nothing"
    return process.stdout.readline().decode().split()


def heard_ready(process: "subprocess.Popen[bytes]") -> list[int]:
    """Wait until the rank is ready; the pids it told."""
    words = words_of(process)
    assert words[:1] == ["ready"], words
    return [int(word) for word in words[1:]]


def rest_of(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.read()


def wait_for(look: Callable[[], T | None], deadline_s: float = 10.0) -> T:
    """What `look` sees, as soon as it sees something."""
    until = time.monotonic() + deadline_s
    while (seen := look()) is None:
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)
    return seen


@contextmanager
def watched(*pids: int) -> Iterator[list[int]]:
    """pidfds of living processes; they are killed in the end."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    try:
        yield pidfds
    finally:
        for pidfd in pidfds:
            if not gone(pidfd, 0):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def gone(pidfd: int, within_s: float = 10) -> bool:
    """A pidfd is readable once its process has ended (pidfd_open(2))."""
    return bool(select.select([pidfd], [], [], within_s)[0])
