"""One process at one moment, and who descends from whom, from /proc alone: nothing is stopped or attached."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from rankpatrol.collect.procfs import ProcessDirectory, ThreadState, number_after, opened, thread_state
from rankpatrol.collect.system_calls import descriptor_place, read_system_call
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import IoCounters, OpenFile, ProcessSample, SystemCall
from rankpatrol.system.process import boot_id, stat_fields

ProcessTree: TypeAlias = Mapping[int, tuple[int, ...]]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENDED = {"Z", "X", "x"}
_MOST_FILES = 4096
_GLANCE = Missing("not read in a light round")
_ROUNDS_SETTLED = 9


def sample_process(pid: int, *, with_files: bool) -> ProcessSample | Missing:
    """What /proc says of this process now. A field that cannot be learned is Missing with its reason; all is, when the process is gone.

    `with_files` lists its descriptors too, the first 4096 of them; that costs more than all the rest.
    """
    with opened(pid) as process:
        return process if isinstance(process, Missing) else _sample(process, partial(_doings, with_files=with_files))


class Glances:
    """What each round reads of every rank: counters, state, names of threads. A fifth of the cost of a whole sample.

    Threads hardly ever change in a training, and their names cost more than all else: they are read again where one has come or gone,
    in the round after that (a thread is named a moment after it has begun), and every tenth round.
    """

    def __init__(self) -> None:
        self._names: dict[int, _Names] = {}

    def at(self, pid: int) -> ProcessSample | Missing:
        """What /proc says of this process now."""
        with opened(pid) as process:
            return process if isinstance(process, Missing) else _sample(process, self._not_asked)

    def forget(self) -> None:
        """Other processes are to be looked at from now on."""
        self._names.clear()

    def _not_asked(self, process: ProcessDirectory, _state: str) -> "_Doings":
        known, listed = self._names.get(process.pid), process.entries("task")
        threads = () if isinstance(listed, Missing) else tuple(listed)
        if known is None or known.threads != threads or known.rounds_left == 0:
            settled = known is not None and known.threads == threads
            known = _Names(process.names_of(threads), threads, _ROUNDS_SETTLED if settled else 0)
        else:
            known = known._replace(rounds_left=known.rounds_left - 1)
        self._names[process.pid] = known
        return _Doings(wait_channel=_GLANCE, system_call=_GLANCE, io=_GLANCE, command=_GLANCE, open_files=_GLANCE, thread_names=known.names)


class _Names(NamedTuple):
    names: tuple[str, ...]
    threads: tuple[str, ...]
    rounds_left: int


def process_tree() -> ProcessTree:
    """The children of every process that has any, from one pass over /proc that several ranks can share."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # ruff: ignore[PTH208] - a thousand Path objects a second would cost more than the reading
        if not name.isdigit():
            continue
        try:
            file = os.open(f"/proc/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                stat = os.read(file, 1024)
            finally:
                os.close(file)
        except OSError:
            continue  # it ended between the listing and the reading
        children.setdefault(int(stat[stat.rindex(b")") + 4 :].split(None, 1)[0]), []).append(int(name))
    return {parent: tuple(pids) for parent, pids in children.items()}


def descendants(pid: int, tree: ProcessTree | None = None) -> tuple[int, ...]:
    """All processes below this one, nearest first; those that were handed to another parent are not found this way."""
    tree = process_tree() if tree is None else tree
    found: dict[int, None] = {}
    level = [pid]
    while level:
        level = [child for parent in level for child in tree.get(parent, ()) if child not in found and child != pid]
        found.update(dict.fromkeys(level))
    return tuple(found)


class _Doings(Record, frozen=True, kw_only=True):
    """What costs the most to learn, and only a close look needs."""

    wait_channel: str | Missing
    system_call: SystemCall | Missing
    io: IoCounters | Missing
    command: tuple[str, ...] | Missing
    open_files: tuple[OpenFile, ...] | Missing
    thread_names: tuple[str, ...]


def _sample(process: ProcessDirectory, learn: Callable[[ProcessDirectory, str], _Doings]) -> ProcessSample | Missing:
    """Reads first what cannot block; what takes the process's memory lock comes after the look at its threads' states."""
    stat, counts = process.read("stat"), _status_counts(process)
    if isinstance(stat, Missing):
        return stat
    if isinstance(counts, Missing):
        return counts
    fields, main_thread = stat_fields(stat.decode(errors="replace")), thread_state(stat)
    state = main_thread.state
    doings = learn(process, state)
    # A last look, so that no sample is mixed from two processes.
    main_stat = process.read(f"task/{process.pid}/stat")
    if isinstance(main_stat, Missing) or (main := stat_fields(main_stat.decode(errors="replace")))[19] != fields[19]:
        return Missing(f"process {process.pid} is gone")
    return ProcessSample(
        id=ProcessId(boot_id(), process.pid, int(fields[19])),
        parent_pid=int(fields[1]),
        name=main_thread.name,
        command=doings.command,
        state=state,
        tracer_pid=counts[0],
        wait_channel=doings.wait_channel,
        system_call=doings.system_call,
        cpu_ticks=int(fields[11]) + int(fields[12]),
        children_ticks=int(fields[13]) + int(fields[14]),
        main_thread_ticks=int(main[11]) + int(main[12]),
        voluntary_switches=counts[1],
        involuntary_switches=counts[2],
        minor_faults=int(fields[7]),
        major_faults=int(fields[9]),
        resident_bytes=int(fields[21]) * _PAGE_BYTES,
        io=doings.io,
        open_files=doings.open_files,
        thread_names=doings.thread_names,
    )


def _doings(process: ProcessDirectory, state: str, *, with_files: bool) -> _Doings:
    wait_channel = _wait_channel(process, state)
    files = _open_files(process) if with_files else Missing("files were not listed in this round")
    threads = process.threads()
    return _Doings(
        wait_channel=wait_channel,
        system_call=_system_call(process, state, threads),
        io=_io(process),
        command=_command(process, state, threads),
        open_files=files,
        thread_names=() if isinstance(threads, Missing) else tuple(thread.name for thread in threads.values()),
    )


def _status_counts(process: ProcessDirectory) -> tuple[int, int, int] | Missing:
    """The tracer's pid, and the main thread's voluntary and involuntary switches."""
    status = process.read("status", 8192)
    if isinstance(status, Missing):
        return status
    tracer_pid = number_after(status, b"TracerPid:")
    voluntary, involuntary = number_after(status, b"voluntary_ctxt_switches:"), number_after(status, b"nonvoluntary_ctxt_switches:")
    if tracer_pid is None or voluntary is None or involuntary is None:
        return Missing(f"/proc/{process.pid}/status lacks TracerPid or the context switches: a sandbox, not Linux itself?")
    return tracer_pid, voluntary, involuntary


def _wait_channel(process: ProcessDirectory, state: str) -> str | Missing:
    text = process.read("wchan", 256)
    if isinstance(text, Missing):
        return text
    channel = text.decode(errors="replace").strip()
    if channel not in {"", "0"} or state == "R":
        return channel
    if state in _ENDED:
        return Missing(f"process {process.pid} has ended and waits for nothing")
    return Missing(f"the kernel hides /proc/{process.pid}/wchan (it needs the same user and ptrace access), or the wait just ended")


def _system_call(process: ProcessDirectory, state: str, threads: dict[int, ThreadState] | Missing) -> SystemCall | Missing:
    if state in _ENDED:
        return Missing(f"process {process.pid} has ended and is in no system call")
    # The main thread's own D does not matter: calls that take a file name wait without the memory lock.
    free = not isinstance(threads, Missing) and all(thread.state != "D" for tid, thread in threads.items() if tid != process.pid)
    return read_system_call(process, memory_is_free=free)


def _io(process: ProcessDirectory) -> IoCounters | Missing:
    text = process.read("io")
    if isinstance(text, Missing):
        return text
    values = [number_after(text, label) for label in (b"rchar:", b"wchar:", b"read_bytes:", b"write_bytes:")]
    numbers = [value for value in values if value is not None]
    return IoCounters(*numbers) if len(numbers) == 4 else Missing(f"/proc/{process.pid}/io lacks a counter")


def _open_files(process: ProcessDirectory) -> tuple[OpenFile, ...] | Missing:
    names = process.entries("fd")
    if isinstance(names, Missing):
        return names
    found = []
    for descriptor in sorted(map(int, names))[:_MOST_FILES]:
        place = descriptor_place(process, descriptor)
        if not isinstance(place, Missing) and place.path is not None:
            found.append(OpenFile(descriptor, place.path, place.offset_bytes or 0))
    return tuple(found)


def _command(process: ProcessDirectory, state: str, threads: dict[int, ThreadState] | Missing) -> tuple[str, ...] | Missing:
    """Command lines lie in the process's memory: reading one hangs while a thread in D state holds its memory lock."""
    if state == "D" or isinstance(threads, Missing) or any(thread.state == "D" for thread in threads.values()):
        return Missing(f"not read while a thread of process {process.pid} is in D state: the reader could hang as well")
    text = process.read("cmdline", 16384)
    if isinstance(text, Missing):
        return text
    return tuple(word.decode(errors="replace") for word in text.rstrip(b"\0").split(b"\0")) if text else ()
