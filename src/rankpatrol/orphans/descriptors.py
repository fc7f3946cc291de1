"""Who has device files open, over all threads' descriptors: from links alone, which never block."""

import fnmatch
import os
import re
from collections.abc import Iterable

from rankpatrol.core.records import Missing

_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class DeviceFiles:
    """Finds open files whose path fits one of the patterns."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._fits = re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match

    def glance(self, pid: int) -> set[str] | Missing:
        """The device files of one process, quickly: threads are looked at where the leader shows nothing, since it may have ended.

        Missing where the kernel does not let us see.
        """
        try:
            found, numbers = self._table(f"/proc/{pid}/fd")
            return found if numbers or _is_single_threaded(pid) else self._of_threads(pid, numbers)
        except PermissionError:
            return Missing("the kernel does not show its descriptors: that takes root, or the same user")
        except OSError:
            return set()  # it ended meanwhile

    def held_by(self, pid: int) -> tuple[str, ...] | Missing:
        """The same, thoroughly: also of threads that left the common table (unshare(2))."""
        try:
            found, numbers = self._table(f"/proc/{pid}/fd")
            return tuple(sorted(found | self._of_threads(pid, numbers)))
        except PermissionError:
            return Missing("the kernel does not show its descriptors: that takes root, or the same user")
        except OSError:
            return ()

    def _of_threads(self, pid: int, leaders: list[str]) -> set[str]:
        found: set[str] = set()
        for thread in os.listdir(f"/proc/{pid}/task"):  # ruff: ignore[PTH208] - names only, no objects: this is done 5,000 times
            folder = f"/proc/{pid}/task/{thread}/fd"
            try:
                if int(thread) != pid and os.listdir(folder) != leaders:  # ruff: ignore[PTH208] - the same
                    found |= self._table(folder)[0]
            except OSError:
                continue  # this thread ended, the others may live
        return found

    def _table(self, folder: str) -> tuple[set[str], list[str]]:
        """The fitting paths in one table of descriptors, and all its numbers. Raises OSError."""
        directory = os.open(folder, _LIST)
        try:
            numbers, found = os.listdir(directory), set()  # ruff: ignore[PTH208] - the same
            for number in numbers:
                try:
                    path = os.readlink(number, dir_fd=directory)
                except OSError:
                    continue
                # Sockets and pipes are most of them: "socket:[1234]".
                if path[0] == "/" and self._fits(path):
                    found.add(path)
        finally:
            os.close(directory)
        return found, numbers


def _is_single_threaded(pid: int) -> bool:
    """True for kernel threads too, of which a large node has thousands: the folder has one link more for each thread (fs/proc/base.c)."""
    return os.stat(f"/proc/{pid}/task").st_nlink == 3  # ruff: ignore[PTH116] - no objects: this is done 5,000 times
