"""Who has device files open, over all threads' descriptors: from links alone, which never block."""

import ctypes
import fnmatch
import os
import platform
import re
from collections.abc import Iterable

from rankpatrol.core.records import Missing

_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
_KCMP_FILES = 2  # kcmp(2)
_libc = ctypes.CDLL(None, use_errno=True)


class DeviceFiles:
    """Finds open files whose path fits one of the patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._fits = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match

    def held_by(self, pid: int) -> tuple[str, ...] | Missing:
        """The device files that this process has open; Missing where the kernel does not let us see.

        A leader that has ended shows no descriptors, its threads do. Threads share one table, but for those that left it (unshare(2)).
        """
        folder = f"/proc/{pid}"
        try:
            numbers = os.listdir(f"{folder}/fd")  # ruff: ignore[PTH208] - 5,000 processes a scan: names only, no objects
            found = self._fitting(f"{folder}/fd", numbers)
            alone = os.stat(f"{folder}/task").st_nlink == 3  # ruff: ignore[PTH116] - the same
            if alone and numbers:
                return tuple(sorted(found))
            for thread in os.listdir(f"{folder}/task"):  # ruff: ignore[PTH208] - the same
                if int(thread) != pid and not (numbers and _same_table(pid, int(thread))):
                    found |= self._of_thread(f"{folder}/task/{thread}/fd")
        except PermissionError:
            return Missing("the kernel does not show its descriptors: that takes root, or the same user")
        except OSError:
            return ()  # it ended meanwhile
        return tuple(sorted(found))

    def _of_thread(self, folder: str) -> set[str]:
        try:
            return self._fitting(folder, os.listdir(folder))  # ruff: ignore[PTH208] - the same
        except OSError:
            return set()

    def _fitting(self, folder: str, numbers: Iterable[str]) -> set[str]:
        found = set()
        for number in numbers:
            try:
                path = os.readlink(f"{folder}/{number}")  # ruff: ignore[PTH115] - the same
            except OSError:
                continue
            # Sockets and pipes are most of them: "socket:[1234]".
            if path[0] == "/" and self._fits(path):
                found.add(path)
        return found


def _same_table(pid: int, thread: int) -> bool:
    """True where the kernel says that both use one table of descriptors; False also where it does not say."""
    return _KCMP is not None and _libc.syscall(_KCMP, pid, thread, _KCMP_FILES, 0, 0) == 0
