"""A command's keeper: whatever the command started is gone when the keeper ends, and the keeper ends with the drill.

`python -m rankpatrol.drill.keeper PARENT_PID LEFT_FILE CMD…`. Every orphan below CMD comes back to the keeper (PR_SET_CHILD_SUBREAPER,
prctl(2)), so a session or group of its own hides nothing. SIGINT is passed to CMD's process group leader; SIGTERM ends the family.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rankpatrol.core.records import ProcessId
from rankpatrol.drill.family import descendants, kill_all, say

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_LEAVE_S = 5.0  # for helpers that write a last record after the command's own end
_KILLED_S = 10.0  # a process in D state is abandoned after this


def keep(parent_pid: int, left_file: Path, command: Sequence[str]) -> int:
    """Run `command` to its end and return its exit code, 128 + N after signal N. Processes it left behind are listed in `left_file`."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above could take effect
        return 128 + signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    try:
        leader = os.posix_spawnp(command[0], list(command), os.environ, setpgroup=0, setsigmask=(), setsigdef=_HEARD)
    except OSError as problem:
        sys.stderr.write(f"cannot start {command[0]}: {problem.strerror}\n")
        return 127
    code = _follow(leader)
    left = _wait_for_leavers()
    if code is not None:  # what a command leaves that is broken off says nothing about it
        left_file.write_text("".join(say(process) + "\n" for process in left))
    _end_family()
    return 128 + signal.SIGTERM if code is None else code


def _follow(leader: int) -> int | None:
    """The leader's exit code, or None when we were told to end it."""
    while True:
        number = signal.sigwait(_HEARD)
        if number == signal.SIGINT:
            os.kill(leader, signal.SIGINT)  # not reaped yet, so the number is still its own
        elif number == signal.SIGCHLD:
            if (status := _reap().get(leader)) is not None:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        else:
            os.kill(leader, signal.SIGTERM)
            return None


def _reap() -> dict[int, int]:
    """Statuses of all children that have ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _wait_for_leavers() -> list[ProcessId]:
    until = time.monotonic() + _LEAVE_S
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        signal.sigtimedwait((signal.SIGCHLD,), 0.1)
        _reap()
    return left


def _end_family() -> None:
    until = time.monotonic() + _KILLED_S
    while (left := descendants(os.getpid())) and time.monotonic() < until:
        kill_all(left)
        signal.sigtimedwait((signal.SIGCHLD,), 0.1)
        _reap()


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
