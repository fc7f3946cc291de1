"""How fast files are read, and how far we are: a check must not take the disk away from the training that it serves."""

import threading
import time
from collections.abc import Callable


class Pace:
    """Counts bytes read by any number of threads, tells them, and holds readers back to a rate (bytes a second; None: no limit)."""

    def __init__(self, most_bytes_s: float | None = None, told: Callable[[int], None] | None = None) -> None:
        self._most_bytes_s, self._told = most_bytes_s, told
        self._lock = threading.Lock()
        self._due_mono_s = 0.0

    def read(self, count: int) -> None:
        """So many bytes were read; waits where that was faster than the rate allows."""
        if self._told is not None:
            self._told(count)
        if self._most_bytes_s is None:
            return
        with self._lock:
            now_s = time.monotonic()
            self._due_mono_s = max(self._due_mono_s, now_s) + count / self._most_bytes_s
            wait_s = self._due_mono_s - now_s
        if wait_s > 0:
            time.sleep(wait_s)
