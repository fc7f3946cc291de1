"""How a process's main thread gets on, and how busy the machine is: one or two small files each, no pause, no wait."""

from pathlib import Path

from rankpatrol.collect.procfs import opened
from rankpatrol.collect.syscalls import RUNNING, call_name
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.system.process import stat_fields

_NS, _TICKS, _US = 1e9, 100.0, 1e6
# Where the fields of a cpu line of /proc/stat lie that are no work: idle and iowait (proc_stat(5)); guests are in user already.
_IDLE = (3, 4)
_COUNTED = 8


class Running(Record, frozen=True, tag="running", kw_only=True):
    """Time the main thread ran, and time it was ready to run and had no CPU (/proc/PID/schedstat, kernel docs sched-stats)."""

    cpu_s: float
    delay_s: float


def running_of(process: ProcessId) -> Running | Missing:
    """The main thread's times so far."""
    with opened(process.pid) as directory:
        if isinstance(directory, Missing):
            return directory
        text = directory.read("schedstat")
        if isinstance(text, Missing):
            return text
        words = text.split()
        if len(words) < 2 or not _is(directory.read("stat"), process):
            return Missing(f"process {process.pid} is gone, or this kernel does not count (CONFIG_SCHED_INFO)")
        return Running(cpu_s=int(words[0]) / _NS, delay_s=int(words[1]) / _NS)


def doing_of(process: ProcessId) -> str | Missing:
    """What the main thread is at in this moment: the name of its system call, or `running`."""
    with opened(process.pid) as directory:
        if isinstance(directory, Missing):
            return directory
        text = directory.read("syscall")
        if isinstance(text, Missing):
            return text
        words = text.split()
        if not words or not _is(directory.read("stat"), process):
            return Missing(f"process {process.pid} is gone")
        # -1: blocked outside of any call, as in a page fault: not waiting for a peer.
        return RUNNING if words[0] == b"running" else "page_fault" if words[0] == b"-1" else call_name(int(words[0]))


def pressures_s(folder: Path = Path("/proc/pressure")) -> dict[str, float]:
    """How long some task of the machine has waited for `cpu`, `memory` and `io` since it started; without those not counted."""
    found = {kind: pressure_s(folder / kind) for kind in ("cpu", "memory", "io")}
    return {kind: seconds for kind, seconds in found.items() if not isinstance(seconds, Missing)}


def pressure_s(file: Path) -> float | Missing:
    """How long some task of the machine has waited for this since it started (kernel docs accounting/psi)."""
    try:
        some = next(line for line in file.read_text().splitlines() if line.startswith("some"))
        return int(some.rpartition("total=")[2]) / _US
    except (OSError, ValueError, StopIteration):
        return Missing(f"no {file}: the kernel has no pressure accounting (psi=1)")


def busy_cpu_s(file: Path = Path("/proc/stat")) -> float | Missing:
    """CPU time that all programs of the machine have used since it started."""
    try:
        counted = [int(word) for word in file.read_text().split("\n", 1)[0].split()[1 : 1 + _COUNTED]]
    except (OSError, ValueError):
        return Missing(f"{file} cannot be read")
    return sum(ticks for index, ticks in enumerate(counted) if index not in _IDLE) / _TICKS


def _is(stat: bytes | Missing, process: ProcessId) -> bool:
    return not isinstance(stat, Missing) and int(stat_fields(stat.decode(errors="replace"))[19]) == process.start_ticks
