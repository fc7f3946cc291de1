"""One scan of this node: who holds devices, and whose they are. Reads only, in the order that cannot block."""

import os
import re
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rankpatrol.collect.procfs import ProcessDirectory, ThreadState, number_after, opened
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.orphans.descriptors import DeviceFiles
from rankpatrol.orphans.homes import home_of, session_uid
from rankpatrol.orphans.jobs import JobWords
from rankpatrol.orphans.records import (
    DEVICES,
    Environment,
    GpuProcess,
    GpuSeen,
    Home,
    HomeKind,
    JobState,
    JobWord,
    ProcessSeen,
    RecordTie,
    Scan,
)
from rankpatrol.orphans.services import is_mps_server
from rankpatrol.system.process import boot_id, stat_fields

_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_KILL_BIT = 1 << (signal.SIGKILL - 1)
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_JOB_NAMES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")

Gpus = Callable[[], tuple[GpuSeen, ...] | Missing]
TieOf = Callable[[ProcessSeen], RecordTie | None]


def read_namespace() -> str:
    """The pid namespace that we are in, such as `pid:[4026531836]` (namespaces(7))."""
    return os.readlink("/proc/self/ns/pid")  # ruff: ignore[PTH115] - a magic link


def device_patterns(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The device files that count: those of NVIDIA, AMD and Ascend, unless RANKPATROL_DEVICES names others (patterns, by `:`)."""
    named = tuple(pattern for pattern in environment.get("RANKPATROL_DEVICES", "").split(":") if pattern)
    return named or DEVICES


class Wide(NamedTuple):
    """The pass over all processes: who holds a device, and how many would not show it."""

    living: frozenset[int]
    holders: tuple[int, ...]
    unseen: int


class Scanner:
    """Scans this node. The namespace, the GPUs and the jobs are given to it, so that each can be another one in a test."""

    def __init__(
        self,
        jobs: JobWords,
        *,
        devices: Iterable[str] = DEVICES,
        gpus: Gpus = lambda: Missing("NVML was not asked"),
        namespace: Callable[[], str] | None = None,
    ) -> None:
        self._jobs, self._gpus, self._namespace = jobs, gpus, namespace or read_namespace
        self._files = DeviceFiles(devices)

    def scan(self) -> Scan:
        """Everything that can be seen now. Asks the jobs' authorities about every job that is named."""
        began, at_unix_s = time.monotonic(), time.time()
        wide = self._pass_over_all()
        gpus = self._gpus()
        named = {one.pid for gpu in (() if isinstance(gpus, Missing) else gpus) for one in _listed(gpu)} & wide.living
        seen = self._look_at(dict.fromkeys((*wide.holders, *sorted(named))))
        words = self.words(seen)
        ended = {word.job for word in words.values() if word.state is JobState.ENDED}
        others, session_uids = _around(wide, seen, ended) if ended else ((), frozenset())
        seen += (more := self._look_at(others))
        return Scan(
            at_unix_s=at_unix_s,
            node=os.uname().nodename,
            pid_namespace=self._namespace(),
            pid_max=int(Path("/proc/sys/kernel/pid_max").read_text()),
            us=frozenset(_us_and_ancestors()),
            processes=tuple(seen),
            living=wide.living,
            gpus=gpus,
            jobs={**words, **(self.words(more) if more else {})},
            session_uids=session_uids,
            mps_uids=frozenset(process.uid for process in seen if is_mps_server(process)),
            unseen=wide.unseen,
            seconds=round(time.monotonic() - began, 3),
        )

    def _look_at(self, pids: Iterable[int]) -> list[ProcessSeen]:
        return [self._tied(process) for process in map(self.look, pids) if isinstance(process, ProcessSeen)]

    def words(self, processes: Iterable[ProcessSeen]) -> dict[str, JobWord]:
        """What the authorities say of every job that these processes name."""
        return dict(self._jobs.words(frozenset(_jobs_of(processes))))

    def look(self, pid: int) -> ProcessSeen | Missing:
        """One process, all of it read from one directory: a pid that is handed on meanwhile cannot mix two of them."""
        with opened(pid) as folder:
            if isinstance(folder, Missing):
                return folder
            seen = _see(folder)
            if isinstance(seen, Missing):
                return seen
            # By number, not through the open directory: hence the second look at who wears it.
            devices = self._files.held_by(pid)
            again = folder.read("stat")
            if isinstance(again, Missing) or int(stat_fields(again.decode(errors="replace"))[19]) != seen.id.start_ticks:
                return Missing(f"process {pid} is gone")
            return msgspec.structs.replace(seen, devices=devices)

    def look_again(self, process: ProcessId) -> ProcessSeen | Missing:
        """The same process, or Missing where the pid is another's by now."""
        seen = self.look(process.pid)
        if isinstance(seen, Missing):
            return seen
        return self._tied(seen) if seen.id == process else Missing(f"pid {process.pid} is worn by another process")

    def holders(self, device: str) -> tuple[int, ...]:
        """Every process that has this device file open now."""
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # ruff: ignore[PTH208] - 5,000 of them
        held = ((pid, self._files.glance(pid)) for pid in pids)
        return tuple(pid for pid, files in held if not isinstance(files, Missing) and device in files)

    def _tied(self, process: ProcessSeen) -> ProcessSeen:
        tie = self._jobs.tie_of(process)
        return process if tie is None else msgspec.structs.replace(process, tie=tie)

    def _pass_over_all(self) -> Wide:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # ruff: ignore[PTH208] - 5,000 of them
        holders, unseen = [], 0
        for pid in pids:
            held = self._files.glance(pid)
            if isinstance(held, Missing):
                unseen += 1
            elif held:
                holders.append(pid)
        # A /proc that hides others' processes (hidepid=, proc(5)) hides init as well.
        return Wide(frozenset(pids), tuple(holders), unseen + (1 not in pids))


def _around(wide: Wide, seen: Iterable[ProcessSeen], ended: Container[str]) -> tuple[tuple[int, ...], frozenset[int]]:
    """The other processes in the cgroups of these ended jobs, and the users with a login session.

    Costs a file of every process, so it is done only where somebody holds a device for a job that has ended.
    """
    known = {process.id.pid for process in seen}
    others, uids = [], set()
    for pid in wide.living - known:
        cgroup = _quick(f"/proc/{pid}/cgroup")
        if "/user.slice/" in cgroup and (uid := session_uid(cgroup)) is not None:
            uids.add(uid)
        home = home_of(cgroup) if "/job_" in cgroup else None
        if isinstance(home, Home) and home.kind is HomeKind.JOB and home.id in ended:
            others.append(pid)
    return tuple(sorted(others)), frozenset(uids)


def _see(folder: ProcessDirectory) -> ProcessSeen | Missing:
    """State first; what lies in the process's memory only where no thread is in D (it may hold the lock that we would wait for)."""
    stat, status, threads = folder.read("stat"), folder.read("status", 8192), folder.threads()
    if isinstance(stat, Missing) or isinstance(status, Missing) or isinstance(threads, Missing):
        return next(part for part in (stat, status, threads) if isinstance(part, Missing))
    text = stat.decode(errors="replace")
    fields = stat_fields(text)
    # A leader that has ended has no memory and, under the old cgroups, no home: a living thread speaks for the process.
    speaker = next((f"task/{tid}/" for tid, thread in threads.items() if thread.state not in "ZX"), "") if fields[0] in "ZX" else ""
    cgroup = folder.read(f"{speaker}cgroup", 65536)
    blocked = sum(thread.state == "D" for thread in threads.values())
    held_memory = blocked > 0 or fields[0] == "D"
    return ProcessSeen(
        id=ProcessId(boot_id(), folder.pid, int(fields[19])),
        parent_pid=int(fields[1]),
        session_id=int(fields[3]),
        uid=number_after(status, b"Uid:") or 0,
        name=text[text.index("(") + 1 : text.rindex(")")],
        state=fields[0],
        threads=len(threads),
        blocked_threads=blocked,
        kill_pending=_kill_pending(status),
        kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
        started_unix_s=_unix_s(int(fields[19])),
        exe=folder.link(f"{speaker}exe"),
        wait_channel=_wait_channel(folder, threads),
        home=cgroup if isinstance(cgroup, Missing) else home_of(cgroup.decode(errors="replace")),
        environment=Missing("not read in D state: the reader could hang as well")
        if held_memory
        else _environment(folder, f"{speaker}environ"),
        devices=(),
    )


def _wait_channel(folder: ProcessDirectory, threads: dict[int, ThreadState]) -> str | Missing:
    """Where the blocked thread waits, else the leader."""
    place = next((f"task/{tid}/wchan" for tid, thread in threads.items() if thread.state == "D"), "wchan")
    text = folder.read(place, 256)
    return text if isinstance(text, Missing) else text.decode(errors="replace").strip() or "0"


def _kill_pending(status: bytes) -> bool:
    masks = re.findall(rb"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)", status, re.MULTILINE)
    return any(int(mask, 16) & _KILL_BIT for mask in masks)


def _environment(folder: ProcessDirectory, name: str) -> Environment | Missing:
    text = folder.read(name, 1 << 17)
    if isinstance(text, Missing):
        return text
    words = dict(word.split("=", 1) for word in text.decode(errors="replace").split("\0") if "=" in word)
    rank = words.get("RANK", "")
    return Environment(
        job=next((words[name] for name in _JOB_NAMES if words.get(name)), None),
        run_dir=words.get("RANKPATROL_RUN_DIR") or None,
        rank=int(rank) if rank.isdigit() else None,
        mps="CUDA_MPS_PIPE_DIRECTORY" in words,
    )


def _unix_s(start_ticks: int) -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + start_ticks / _TICKS_A_SECOND


def _listed(gpu: GpuSeen) -> tuple[GpuProcess, ...]:
    return () if isinstance(gpu.processes, Missing) else gpu.processes


def _jobs_of(processes: Iterable[ProcessSeen]) -> Iterator[str]:
    for process in processes:
        if process.tie is not None:
            yield process.tie.key
        if not isinstance(process.home, Missing) and process.home.kind is HomeKind.JOB:
            yield process.home.id
        if not isinstance(process.environment, Missing) and process.environment.job is not None:
            yield process.environment.job


def _us_and_ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 0:
        yield pid
        stat = _quick(f"/proc/{pid}/stat")
        pid = int(stat_fields(stat)[1]) if stat else 0


def _quick(path: str) -> str:
    """A small file of /proc in three calls, or an empty text."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, 16384).decode(errors="replace")
        finally:
            os.close(file)
    except OSError:
        return ""
