"""`python -I -S tied.py PARENT_PID CMD…`: becomes CMD, which the kernel kills when its parent ends. Standard library alone.

The parent is the thread that started us (PR_SET_PDEATHSIG, prctl(2)): it has to stay for as long as CMD is wanted.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> NoReturn:
    """Become CMD, or end with 1 where nobody is left to want it."""
    parent_pid, command = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the line above could take effect
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execv(command[0], command)  # ruff: ignore[S606] - no shell is what we want


if __name__ == "__main__":
    main(sys.argv[1:])
