"""Every process of this node that may be a rank, read in an order in which nothing can block."""

import os
from collections.abc import Collection, Iterable, Iterator

from rankpatrol.collect.procfs import ProcessDirectory, opened
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.discover.records import Candidate
from rankpatrol.system.process import boot_id, stat_fields

_MOST_ENVIRON_BYTES = 1 << 18
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD, linux/sched.h


def candidates(variables: Collection[str], names: tuple[str, ...], among: Iterable[int] | None = None) -> Iterator[Candidate]:
    """All processes (or those `among` these) but kernel threads and zombies, each with those of its variables that are asked for.

    More is read of those alone that have any of them, or whose name begins with one of `names`.

    Environment and command line lie in the process's own memory: they are not read of one in D state, where the reader could hang too.
    """
    wanted = {name.encode() for name in variables}
    for pid in _all_pids() if among is None else among:
        with opened(pid) as process:
            if not isinstance(process, Missing) and (found := _candidate(process, wanted, names)) is not None:
                yield found


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # ruff: ignore[PTH208] - thousands of names


def parents(found: Collection[Candidate]) -> dict[int, int]:
    """Each process's parent."""
    return {each.id.pid: each.parent_pid for each in found}


def _candidate(process: ProcessDirectory, wanted: Collection[bytes], names: tuple[str, ...]) -> Candidate | None:
    stat = process.read("stat")
    if isinstance(stat, Missing):
        return None
    text = stat.decode(errors="replace")
    fields = stat_fields(text)
    if fields[0] in "ZXx" or int(fields[6]) & _KERNEL_THREAD:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    environment = _environment(process, fields[0], wanted)
    # Most processes of a node are none of ours: of those nothing more is read.
    may_be = bool(environment) or name.startswith(names)
    return Candidate(
        id=ProcessId(boot_id(), process.pid, int(fields[19])),
        parent_pid=int(fields[1]),
        uid=process.owner(),
        name=name,
        command=_command(process, fields[0]) if may_be else Missing("not of interest"),
        environment=environment,
        thread_names=_thread_names(process) if may_be and int(fields[17]) > 1 else frozenset(),
        log_path=_log_path(process) if may_be else None,
    )


def _environment(process: ProcessDirectory, state: str, wanted: Collection[bytes]) -> dict[str, str] | Missing:
    if state == "D":
        return Missing(f"process {process.pid} is in D state: whoever reads its environment could hang as well")
    environ = process.read("environ", _MOST_ENVIRON_BYTES)
    if isinstance(environ, Missing):
        return environ
    pairs = (entry.partition(b"=") for entry in environ.split(b"\0"))
    return {name.decode(): value.decode(errors="replace") for name, _, value in pairs if name in wanted}


def _command(process: ProcessDirectory, state: str) -> tuple[str, ...] | Missing:
    text = Missing("not read in D state") if state == "D" else process.read("cmdline", 16384)
    return text if isinstance(text, Missing) else tuple(word.decode(errors="replace") for word in text.rstrip(b"\0").split(b"\0"))


def _thread_names(process: ProcessDirectory) -> frozenset[str]:
    threads = process.threads()
    return frozenset() if isinstance(threads, Missing) else frozenset(thread.name for thread in threads.values())


def _log_path(process: ProcessDirectory) -> str | None:
    """The file that its output goes to, where it is one."""
    for descriptor in ("fd/1", "fd/2"):
        place = process.link(descriptor)
        if isinstance(place, str) and place.startswith("/") and not place.startswith(("/dev/", "/proc/")) and os.path.isfile(place):  # ruff: ignore[PTH113]
            return place
    return None
