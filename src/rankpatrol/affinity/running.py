"""Finds the ranks that run on this machine, and reads where their threads may run and their memory lies. Nothing is stopped."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankpatrol.affinity.audit import RunningProcess, Seen, Subject, memory_by_node
from rankpatrol.affinity.cpus import is_number
from rankpatrol.affinity.visible import LOCAL_RANKS, local_rank
from rankpatrol.core.lineage import above
from rankpatrol.core.records import Missing, Record
from rankpatrol.system.process import is_hidden, stat_fields

# A rank's global number, by the launchers of LOCAL_RANKS.
_GLOBAL_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_DEVICE = re.compile(r"/dev/(?:nvidia\d+|dri/renderD\d+)")
_SHIM = "rankpatrol/launch/shim"
_UNREAD = Missing("it was not read, so as not to hold the process up")


class RunningRank(Record, frozen=True):
    """A process that a launcher numbered, with all that descend from it."""

    subject: Subject
    environment: Mapping[str, str]
    opened: frozenset[str]
    elsewhere: bool

    def seen(self, users: Mapping[str, frozenset[int]]) -> Seen:
        """What is known of its GPUs; `users` are the driver's, whose pids mean nothing in another pid namespace."""
        ours = {process.pid for process in self.subject.processes} if _pids_are_the_drivers() else set()
        return Seen(self.opened, frozenset(address for address, pids in users.items() if pids & ours), self.elsewhere)


class _Seen(Record, frozen=True):
    pid: int
    parent: int
    environment: Mapping[str, str]
    launcher: int  # row of LOCAL_RANKS


def running_ranks() -> tuple[RunningRank, ...]:
    """The topmost process of each rank that we may look at, by local rank. A launcher above ranks is none itself, nor is our shim."""
    parents = _parents()
    seen = {pid: found for pid in parents if (found := _look(pid, parents[pid])) is not None}
    # srun numbers torchrun too: the launcher nearest to the rank counts.
    launchers = {pid for found in seen.values() for pid in above(found.pid, parents) if pid in seen and seen[pid].launcher > found.launcher}
    ranks = [
        found
        for found in seen.values()
        if found.pid not in launchers and not any(pid in seen and pid not in launchers for pid in above(found.pid, parents))
    ]
    ranks.sort(key=lambda found: (local_rank(found.environment).rank or 0, found.pid))
    return tuple(read_rank(found.pid, found.environment, parents) for found in ranks)


def running_process(pid: int, *, memory: bool = True) -> RunningRank | Missing:
    """One process, rank or not, by its pid; without `memory`, where its memory lies is not read."""
    parents = _parents()
    if pid not in parents:
        return Missing(f"process {pid} is gone")
    environment = read_environment(pid)
    return environment if isinstance(environment, Missing) else read_rank(pid, environment, parents, memory=memory)


def is_closed(pid: int) -> bool:
    """Whether a process is there and the kernel does not let us see what it was started with."""
    if is_hidden(pid):
        return True
    try:
        if not _some_thread_is_stuck(pid):
            Path(f"/proc/{pid}/environ").open("rb").close()
    except PermissionError:
        return True
    except OSError:  # it has gone
        return False
    return False


def read_rank(pid: int, environment: Mapping[str, str], parents: Mapping[int, int], *, memory: bool = True) -> RunningRank:
    """A rank and its descendants, as they are now."""
    number = next((environment[name] for name in _GLOBAL_RANKS if is_number(environment.get(name, ""))), None)
    family = [pid, *(child for child in sorted(parents) if pid in above(child, parents))]
    processes = tuple(process for each in family if (process := _process(each, memory=memory)) is not None)
    if not processes:
        processes = (RunningProcess(pid=pid, name="?", threads={}, memory_bytes=Missing(f"process {pid} is gone")),)
    opened = frozenset(path for each in family for path in _devices(each))
    return RunningRank(Subject(None if number is None else int(number), processes), environment, opened, _world(pid) != _world(os.getpid()))


def _pids_are_the_drivers() -> bool:
    """NVML knows only the initial pid namespace, whose inode is fixed (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == "pid:[4026531836]"
    except OSError:
        return False


def _devices(pid: int) -> Iterator[str]:
    """The GPUs that a process has open; none where we may not look."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):  # ruff: ignore[PTH208] - names only
            with contextlib.suppress(OSError):  # closed meanwhile
                path = str(Path(f"/proc/{pid}/fd/{name}").readlink())
                if _DEVICE.fullmatch(path):
                    yield path
    except OSError:
        return


def _world(pid: int) -> object:
    """Its mount namespace and its cgroups; unlike any other's where they cannot be seen."""
    try:
        return Path(f"/proc/{pid}/ns/mnt").readlink(), Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return object()


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):  # ruff: ignore[PTH208] - names only
        if name.isdecimal():
            fields = _stat(int(name))
            if fields is not None and fields[0] not in "ZX":
                found[int(name)] = int(fields[1])
    return found


def _stat(pid: int) -> list[str] | None:
    try:
        return stat_fields(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (OSError, ValueError):
        return None


def _look(pid: int, parent: int) -> _Seen | None:
    environment = read_environment(pid)
    if isinstance(environment, Missing):
        return None
    row = next((at for at, (rank, _) in enumerate(LOCAL_RANKS) if environment.get(rank, "").isdecimal()), None)
    if row is None or _SHIM in (_read(pid, "cmdline") or b"").decode(errors="replace"):
        return None
    return _Seen(pid, parent, environment, row)


def read_environment(pid: int) -> dict[str, str] | Missing:
    """What a process was started with. It lies in the process's memory: not read while a thread in D state may hold the lock on it."""
    if _some_thread_is_stuck(pid):
        return Missing(f"a thread of process {pid} is in D state: whoever reads its memory could hang as well")
    text = _read(pid, "environ")
    if text is None:
        return Missing(f"the kernel refuses /proc/{pid}/environ: it needs the same user and ptrace access")
    return dict(word.split("=", 1) for word in text.decode(errors="replace").split("\0") if "=" in word)


def _process(pid: int, *, memory: bool) -> RunningProcess | None:
    fields = _stat(pid)
    if fields is None:
        return None
    threads = {}
    for tid in _tasks(pid):
        try:
            threads[tid] = frozenset(os.sched_getaffinity(tid))
        except OSError:
            continue  # it ended meanwhile
    name = (_read(pid, "comm") or b"?").decode(errors="replace").strip()
    return RunningProcess(pid=pid, name=name, threads=threads, memory_bytes=_memory(pid) if memory else _UNREAD)


def _memory(pid: int) -> dict[int, int] | Missing:
    if _some_thread_is_stuck(pid):
        return Missing(f"a thread of process {pid} is in D state: its memory is not looked at")
    text = _read(pid, "numa_maps")
    if text is None:
        return Missing(f"/proc/{pid}/numa_maps cannot be read: it needs the same user and ptrace access, and a kernel with NUMA")
    try:
        return memory_by_node(text.decode(errors="replace"))
    except ValueError:
        return Missing(f"/proc/{pid}/numa_maps is not as expected")


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]  # ruff: ignore[PTH208] - names only
    except OSError:
        return []


def _some_thread_is_stuck(pid: int) -> bool:
    for tid in _tasks(pid):
        stat = _read(pid, f"task/{tid}/stat")
        if stat and stat[stat.rindex(b")") + 2 :][:1] == b"D":
            return True
    return False


def _read(pid: int, name: str) -> bytes | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return None
