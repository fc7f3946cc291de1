"""Who a process is, and signals that reach exactly that one."""

import functools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import ProcessId

# 52 numbers of at most 20 digits, and a name of 15 bytes (proc_pid_stat(5)).
_STAT_BYTES = 2048


@functools.cache
def boot_id() -> str:
    """This boot of the kernel: pids and start ticks mean nothing across two boots (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat_fields(text: str) -> list[str]:
    """The fields of a /proc/PID/stat line from `state` (field 3) on; the name before it may hold blanks and brackets."""
    return text[text.rindex(")") + 2 :].split()


def read_stat(pid: int) -> str:
    """The line of /proc/PID/stat. Raises OSError. By three system calls: a patrol reads it many times a second."""
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _STAT_BYTES).decode(errors="replace")
    finally:
        os.close(file)


def ticks_now() -> int:
    """Now, as processes' starts are counted: clock ticks since the boot, suspension included (proc_pid_stat(5), field 22)."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def identify(pid: int) -> ProcessId | None:
    """The process that wears this pid now, or None where there is none. A zombie counts: its pid is still taken."""
    try:
        fields = stat_fields(read_stat(pid))
    except (OSError, ValueError):
        return None
    return ProcessId(boot_id(), pid, int(fields[19]))


def has_ended(process: ProcessId) -> bool:
    """True where it is gone or a zombie: in a container whose first process reaps nobody, an orphan stays one for good."""
    try:
        fields = stat_fields(read_stat(process.pid))
    except (OSError, ValueError):
        return not is_hidden(process.pid)
    return int(fields[19]) != process.start_ticks or fields[0] in {"Z", "X", "x"}


def is_hidden(pid: int) -> bool:
    """True where a process is there that /proc does not show us (its hidepid option): signal 0 asks without a signal (kill(2))."""
    if identify(pid) is not None:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (ProcessLookupError, OverflowError):
        return False
    return identify(pid) is None  # again: it may have begun in between


@contextmanager
def pinned(process: ProcessId) -> Iterator[int]:
    """A pidfd of exactly this process. Raises ProcessChanged when it is gone or its pid is worn by another (pidfd_open(2))."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        raise ProcessChanged(f"process {process.pid} is gone") from None
    try:
        # Checked after the descriptor is open: from here on the number cannot be handed to another process unseen.
        if identify(process.pid) != process:
            raise ProcessChanged(f"pid {process.pid} belongs to another process now")
        yield pidfd
    finally:
        os.close(pidfd)


def send_signal(process: ProcessId, number: signal.Signals) -> None:
    """Signal exactly this process. Raises ProcessChanged when it is no longer there."""
    with pinned(process) as pidfd:
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            raise ProcessChanged(f"process {process.pid} is gone") from None
