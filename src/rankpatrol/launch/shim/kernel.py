"""What the shim asks of the kernel: prctl, the family of a process, and how to end as somebody else ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from typing import Callable, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 4, 36, 0x59616D61
PR_SET_PTRACER_ANY = (1 << 64) - 1

_LOADER = "pt_data_worker"

_libc = ctypes.CDLL(None, use_errno=True)


class Kin(NamedTuple):
    """One process: a pid alone is worn by others later (proc_pid_stat(5), field 22)."""

    pid: int
    start_ticks: int


def prctl(option: int, value: int) -> None:
    """Set one option of this process; a kernel that does not know it (Yama's, say) answers EINVAL, and nothing is lost."""
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from `state` on, or None where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            text = stat.read()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def start_ticks(pid: int) -> int | None:
    """When a process started, or None where it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def descendants(ancestor: int) -> list[Kin]:
    """Living descendants, from one pass over /proc. Zombies are left out, but for one whose other threads run on: it holds all it had."""
    family: dict[int, list[Kin]] = {}
    for name in os.listdir("/proc"):
        fields = _stat_fields(int(name)) if name.isdigit() else None
        if fields and (fields[0] not in "ZX" or int(fields[17]) > 1):
            family.setdefault(int(fields[1]), []).append(Kin(int(name), int(fields[19])))
    found: list[Kin] = []
    level = [Kin(ancestor, start_ticks(ancestor) or 0)]
    while level:
        # A parent is older than its child: a younger one took over a pid while we were reading.
        level = [child for parent in level for child in family.get(parent.pid, ()) if child.start_ticks >= parent.start_ticks]
        found += level
    return found


def signal_exactly(process: Kin, number: int) -> None:
    """Signal this very process while it is there (pidfd_open(2); before Python 3.9 or Linux 5.3 its pid is checked right before)."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        pidfd = -1
    try:
        if start_ticks(process.pid) != process.start_ticks:
            return
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it ended meanwhile, or became another user's (setuid): nothing of ours to end
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def reap(spare: int = 0) -> None:
    """Collect ended children, orphans that fell to us included; `spare`'s status is left for the one who asks for it (waitid(2))."""
    with contextlib.suppress(ChildProcessError):
        while True:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None or seen.si_pid == spare:
                return
            os.waitpid(seen.si_pid, os.WNOHANG)


def loaders(ancestor: int) -> list[Kin]:
    """Descendants that are torch's own DataLoader processes, by the name they give themselves; older ones have none and are spared."""
    return [process for process in descendants(ancestor) if _comm(process.pid) == _LOADER]


def _comm(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read().rstrip("\n")
    except OSError:
        return None


def end_stuck_loaders(ancestor: int, leave_s: float, grace_s: float) -> None:
    """After a good end: a healthy loader notices within 5 s that its rank has gone; one that does not would never go."""
    until = time.monotonic() + leave_s
    while loaders(ancestor) and time.monotonic() < until:
        reap()
        time.sleep(0.05)
    sweep(ancestor, grace_s, loaders)


def sweep(ancestor: int, grace_s: float, wanted: Callable[[int], list[Kin]] = descendants) -> None:
    """End all descendants (or those `wanted`), also those born meanwhile. One in D state cannot be ended: it is left after 2 s."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        told: set[Kin] = set()
        until = time.monotonic() + wait_s
        while True:
            reap()
            left = wanted(ancestor)
            for process in left:
                if process not in told:
                    told.add(process)
                    signal_exactly(process, number)
            if not left or time.monotonic() > until:
                break
            time.sleep(0.02)


def prepare_rank() -> None:
    """In the rank's process before exec: it dies with its shim, and a stack may be taken of it under Yama (prctl(2))."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def hold_standard_streams() -> None:
    """Fill a closed 0, 1 or 2: a pipe of ours that got such a number would take the rank's output for its own."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, hence this one (open(2))


def end_as(status: int) -> None:
    """End this process the way `status` (subprocess's: negative for a signal) says, so that torchrun sees what happened to the rank."""
    if status < 0:
        # The rank's own core file stands; a second one of the shim would hide it. A core_pattern pipe heeds only the second (core(5)).
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        prctl(PR_SET_DUMPABLE, 0)
        if -status not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)
