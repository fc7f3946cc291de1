"""What the shim asks of the kernel: prctl, the family of a process, and how to end as somebody else ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_PTRACER = 1, 36, 0x59616D61
PR_SET_PTRACER_ANY = (1 << 64) - 1

_libc = ctypes.CDLL(None, use_errno=True)


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
    """When a process started (proc_pid_stat(5), field 22), or None where it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def descendants(ancestor: int) -> list[int]:
    """Living descendants, from one pass over /proc. Zombies are left out: they hold nothing but a pid."""
    family: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = _stat_fields(int(name)) if name.isdigit() else None
        if fields and fields[0] not in "ZX":
            family.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    level = [ancestor]
    while level:
        level = [child for parent in level for child in family.get(parent, ())]
        found += level
    return found


def reap() -> None:
    """Collect ended children, so that no zombie counts as alive."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def prepare_rank() -> None:
    """In the rank's process before exec: it dies with its shim, and a stack may be taken of it under Yama (prctl(2))."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY)


def end_as(status: int) -> None:
    """End this process the way `status` (subprocess's: negative for a signal) says, so that torchrun sees what happened to the rank."""
    if status < 0:
        # The rank's own core file stands; a second one of the shim would hide it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(-status, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)
