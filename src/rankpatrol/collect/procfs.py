"""Reading one process's directory under /proc, each failure with its plain reason."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rankpatrol.core.records import Missing, Record
from rankpatrol.system.process import is_hidden

_READ = os.O_RDONLY | os.O_CLOEXEC
_ALWAYS_THERE = {"stat", "status", "task", "fd"}


class ThreadState(Record, frozen=True):
    """One thread's name and state letter."""

    name: str
    state: str


class ProcessDirectory:
    """One /proc/PID, held open: all that is read belongs to the process that wore the pid at that time, or is Missing."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    def read(self, name: str, max_bytes: int = 4096) -> bytes | Missing:
        """The first `max_bytes` of one file, in a single read."""
        try:
            file = os.open(name, _READ, dir_fd=self._descriptor)
            try:
                return os.read(file, max_bytes)
            finally:
                os.close(file)
        except OSError as problem:
            return self._missing(name, problem)

    def owner(self) -> int:
        """The user that the kernel lets read it: the process's own, or root's where its memory may not be dumped (proc(5))."""
        return os.fstat(self._descriptor).st_uid

    def read_memory(self, address: int, max_bytes: int) -> bytes | Missing:
        """What the process holds at an address. Takes its memory lock: never call it while another of its threads is in D state."""
        if not 0 < address < 1 << 63:
            return Missing(f"{address:#x} is no address of process {self.pid}")
        try:
            file = os.open("mem", _READ, dir_fd=self._descriptor)
            try:
                return os.pread(file, max_bytes, address)
            finally:
                os.close(file)
        except OSError as problem:
            return self._missing("mem", problem)

    def link(self, name: str) -> str | Missing:
        """Where a link leads, as the process itself sees it."""
        try:
            return os.readlink(name, dir_fd=self._descriptor)
        except OSError as problem:
            return self._missing(name, problem)

    def entries(self, name: str) -> list[str] | Missing:
        """The names in one of its directories."""
        try:
            directory = os.open(name, _READ | os.O_DIRECTORY, dir_fd=self._descriptor)
            try:
                return os.listdir(directory)  # ruff: ignore[PTH208] - pathlib cannot list an open directory
            finally:
                os.close(directory)
        except OSError as problem:
            return self._missing(name, problem)

    def threads(self) -> dict[int, ThreadState] | Missing:
        """Every thread by its id; one that ends meanwhile is left out."""
        names = self.entries("task")
        if isinstance(names, Missing):
            return names
        found = {}
        for name in names:
            stat = self.read(f"task/{name}/stat", 1024)
            if not isinstance(stat, Missing):
                found[int(name)] = thread_state(stat)
        return found

    def names_of(self, threads: tuple[str, ...]) -> tuple[str, ...]:
        """The names of these threads (of `task`); one that has ended meanwhile is left out. For the kernel less work than their states."""
        names = (self.read(f"task/{thread}/comm", 64) for thread in threads)
        return tuple(name.decode(errors="replace").rstrip("\n") for name in names if not isinstance(name, Missing))

    def _missing(self, name: str, problem: OSError) -> Missing:
        if problem.errno == errno.ESRCH or (problem.errno == errno.ENOENT and name in _ALWAYS_THERE):
            return Missing(f"process {self.pid} is gone")
        if problem.errno in {errno.EACCES, errno.EPERM}:
            return Missing(f"the kernel refuses /proc/{self.pid}/{name}: needs the same user and ptrace access")
        return Missing(f"cannot read /proc/{self.pid}/{name}: {problem.strerror}")


@contextmanager
def opened(pid: int) -> Iterator[ProcessDirectory | Missing]:
    """The directory of the process that wears this pid now, or Missing where there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}", _READ | os.O_DIRECTORY)
    except OSError as problem:
        gone = problem.errno in {errno.ENOENT, errno.ESRCH}
        yield not_there(pid) if gone else Missing(f"cannot open /proc/{pid}: {problem.strerror}")
        return
    try:
        yield ProcessDirectory(pid, descriptor)
    finally:
        os.close(descriptor)


def not_there(pid: int) -> Missing:
    """Why /proc has no such process: it is gone, or kept from us."""
    if is_hidden(pid):
        return Missing(f"process {pid} is there, and the kernel hides it from this user (/proc is mounted with hidepid)")
    return Missing(f"process {pid} is gone")


def thread_state(stat: bytes) -> ThreadState:
    """Name and state from a stat line; the name may hold blanks and brackets (proc_pid_stat(5))."""
    end = stat.rindex(b")")
    return ThreadState(stat[stat.index(b"(") + 1 : end].decode(errors="replace"), chr(stat[end + 2]))


def number_after(text: bytes, label: bytes) -> int | None:
    """The number after a label (`pos:`) that starts a line of status, io or fdinfo; None where there is no such line."""
    at = 0 if text.startswith(label) else text.find(b"\n" + label) + 1
    words = text[at : at + len(label) + 32].split(None, 2) if text.startswith(label, at) else []
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None
