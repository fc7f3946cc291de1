"""What the machine itself says: kernel log, pressure, memory, disks, load, sockets, GPUs. Nothing here can hold the patrol up."""

import errno
import functools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.evidence.sockets import sockets_of
from rankpatrol.system.command import run

KERNEL_LOG_LINES = 500

_MEMORY_LINES = re.compile(r"(?:Mem(?:Total|Free|Available)|Swap(?:Total|Free)|AnonPages|Shmem|Dirty|Writeback|HugePages_(?:Total|Free)):")
_CGROUP_FILES = (
    *("memory.max", "memory.high", "memory.current", "memory.swap.current", "memory.events"),
    *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "memory.oom_control"),
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def host_facts(
    pids: Sequence[int], paths: Sequence[Path], *, deadline_s: float = 12.0, more: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, Any]:
    """Every fact by its name, gathered side by side; each is a JSON-able value or Missing. `pids` are the ranks', `paths` what they use.

    `more`: facts that others know to gather.
    """
    return within(
        {
            "kernel_log": kernel_log,
            "pressure": pressure,
            "memory": lambda: memory(pids),
            "mounts": mounts,
            "disks": lambda: disks(paths),
            "load": load,
            "sockets": lambda: sockets_of(pids),
            "gpus": gpus,
            **(more or {}),
        },
        deadline_s,
    )


def within(facts: Mapping[str, Callable[[], Any]], deadline_s: float) -> dict[str, Any]:
    """Run each in its own thread and wait for all once. A thread that does not come back is left behind, and its fact is Missing."""
    found: dict[str, Any] = {}
    until = time.monotonic() + deadline_s
    threads = [threading.Thread(target=_learn, args=(found, name, fact), daemon=True) for name, fact in facts.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = Missing(f"was not done after {deadline_s:g} s")
    return {name: found.get(name, late) for name in facts}


def kernel_log(device: Path = Path("/dev/kmsg")) -> str | Missing:
    """The last lines of the kernel's log, with seconds since boot. Reading takes nothing away from other readers (dev-kmsg ABI)."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError:
        return Missing(f"{device} may not be read: kernel.dmesg_restrict=1 wants CAP_SYSLOG")
    except OSError as problem:
        return Missing(f"{device}: {problem.strerror}")
    try:
        records = _kernel_records(descriptor)
    finally:
        os.close(descriptor)
    return "\n".join(_kernel_line(record) for record in records[-KERNEL_LOG_LINES:])


def _kernel_records(descriptor: int) -> list[str]:
    records: list[str] = []
    while True:
        try:
            record = os.read(descriptor, 8192)
        except BlockingIOError:
            return records
        except OSError as problem:
            # EPIPE: the ring went on while we read, and the next read is good again.
            if problem.errno != errno.EPIPE:
                raise
            continue
        if not record:
            return records
        records.append(record.decode(errors="replace"))


def _kernel_line(record: str) -> str:
    """`6,1234,5678901,-;text` becomes `[    5.678901] text`; the key=value lines below it go."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    since_boot_s = int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else 0.0
    return f"[{since_boot_s:12.6f}] {text.partition(chr(10))[0]}"


def pressure(root: Path = Path("/proc/pressure")) -> dict[str, str] | Missing:
    """How long tasks waited for CPU, memory and I/O, as the kernel words it."""
    if not root.is_dir():
        return Missing(f"no {root}: the kernel has no pressure accounting (psi=1)")
    return {file.name: file.read_text().strip() for file in sorted(root.iterdir())}


def memory(pids: Sequence[int]) -> dict[str, Any]:
    """The main lines of /proc/meminfo, and limit, use and out-of-memory counts of each cgroup the processes live in."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    machine = {name: value.strip() for name, _, value in (line.partition(":") for line in lines if _MEMORY_LINES.match(line))}
    groups = {directory for pid in pids for directory in _memory_cgroups(pid)}
    return {"machine": machine, "cgroups": {str(directory): _cgroup(directory) for directory in sorted(groups)}}


def _memory_cgroups(pid: int) -> list[Path]:
    """Where the memory controller of this process keeps its files, version 1 or 2 (cgroups(7)); its root inside a namespace."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers == "" or "memory" in controllers.split(","):
            root = Path("/sys/fs/cgroup") / controllers
            own = root / path.lstrip("/")
            found.append(own if own.is_dir() else root)
    return [directory for directory in found if _cgroup(directory)]


def _cgroup(directory: Path) -> dict[str, str]:
    values: dict[str, str] = {}
    for name in _CGROUP_FILES:
        try:
            values[name] = (directory / name).read_text().strip()
        except OSError:
            continue
    return values


def mounts(table: Path = Path("/proc/self/mountinfo")) -> list[dict[str, str]]:
    """What is mounted where, from the kernel's table alone, so that a dead server is not asked (proc_pid_mountinfo(5))."""
    return [_mount(line) for line in table.read_text(errors="replace").splitlines() if " - " in line]


def _mount(line: str) -> dict[str, str]:
    place, _, kind = line.partition(" - ")
    fields, (file_system, source, *options) = place.split(" "), kind.split(" ")
    where = _OCTAL.sub(lambda digits: chr(int(digits[1], 8)), fields[4])
    return {"where": where, "type": file_system, "source": source, "options": ",".join([fields[5], *options])}


def disks(paths: Sequence[Path], *, deadline_s: float = 3.0) -> dict[str, Any]:
    """Size and free space of the file system under each path, each or Missing."""
    asked = dict.fromkeys(str(path) for path in (*paths, Path("/tmp"), Path("/dev/shm")))  # ruff: ignore[S108] - asked about, not written to
    return within({path: functools.partial(_disk, path, deadline_s) for path in asked}, deadline_s + 2)


def _disk(path: str, deadline_s: float) -> dict[str, Any] | Missing:
    # statfs(2) on a dead NFS mount does not return: it is stat(1) that hangs then, and the runner leaves it behind.
    result = run(["stat", "-f", "-c", "%S %b %f %a %c %d %T", "--", path], deadline_s=deadline_s)
    if result.exit_code != 0:
        return Missing(result.stderr.decode(errors="replace").strip() or f"stat ended with {result.exit_code}")
    block, size, free, available, inodes, inodes_free, kind = result.stdout.decode().split(maxsplit=6)
    return {
        "type": kind.strip(),
        "size_bytes": int(block) * int(size),
        "free_bytes": int(block) * int(free),
        "available_bytes": int(block) * int(available),
        "inodes": int(inodes),
        "inodes_free": int(inodes_free),
    }


def load() -> dict[str, Any]:
    """How busy the machine is and what it is."""
    return {
        "load_average": Path("/proc/loadavg").read_text().strip(),
        "cpus": os.cpu_count(),
        "up_s": float(Path("/proc/uptime").read_text().split()[0]),
        "kernel": os.uname().release,
        "node": os.uname().nodename,
    }


def gpus(*, deadline_s: float = 10.0) -> str | Missing:
    """What nvidia-smi prints. It runs in a child that can be left behind, since a sick GPU can hold it for ever."""
    if shutil.which("nvidia-smi") is None:
        return Missing("no nvidia-smi on PATH")
    result = run(["nvidia-smi"], deadline_s=deadline_s)
    said = (result.stdout + result.stderr).decode(errors="replace").strip()
    # A lost GPU makes it fail, and then its words are the very evidence.
    return said if result.exit_code == 0 else f"nvidia-smi ended with {result.exit_code}\n{said}"


def _learn(found: dict[str, Any], name: str, fact: Callable[[], Any]) -> None:
    try:
        found[name] = fact()
    except (OSError, ValueError, PatrolError) as problem:
        found[name] = Missing(str(problem))
