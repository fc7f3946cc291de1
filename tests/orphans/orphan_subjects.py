"""Real processes for the orphans' tests, which write down the signals that they hear."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest


class Victims:
    """Starts victims; ends exactly those."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *files: Path, how: str = "plain", cgroup_procs: str = "", environment: dict[str, str] | None = None) -> int:
        reader, writer = os.pipe()
        log = self._folder / f"log.{len(self._started)}"
        words = [self._program, log, cgroup_procs, str(os.geteuid()), how, str(writer), *files]
        self._started.append(subprocess.Popen(words, pass_fds=[writer], env=environment or {}))
        os.close(writer)
        assert os.read(reader, 1) == b"r"
        os.close(reader)
        pid = self._started[-1].pid
        until = time.monotonic() + 10
        while how == "headless" and not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z"):
            assert time.monotonic() < until, "its leading thread does not end"
        return pid

    def heard(self, pid: int) -> list[str]:
        number = next(at for at, process in enumerate(self._started) if process.pid == pid)
        return (self._folder / f"log.{number}").read_text().split()

    def ended(self, pid: int) -> int | None:
        return next(process.poll() for process in self._started if process.pid == pid)

    def end(self) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its own session, and is not reaped yet
            process.wait()


def cgroup2() -> Path | None:
    """Where cgroups can be made, or None."""
    lines = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    mount = next((Path(words[1]) for words in lines if words[2] == "cgroup2"), None)
    return mount if mount is not None and os.geteuid() == 0 and os.access(mount, os.W_OK) else None


needs_namespace = pytest.mark.skipif(cgroup2() is None, reason="takes root, to make cgroups and a pid namespace")
