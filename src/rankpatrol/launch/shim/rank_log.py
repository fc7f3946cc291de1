"""The rank's log file, on a disk that may be slow, full or gone while the training goes on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Tuple

# A rank that prints a line every few milliseconds wakes the disk's thread twenty times a second, and not for each line.
_GATHER_S = 0.05
_MOST_WAITING_BYTES = 16 << 20  # as much again may be on its way to the disk


class RankLog:
    """Written by a thread of its own, which alone touches the disk; what it cannot keep is counted, and the count is kept.

    It writes all that waits at once: a rank may print many small pieces faster than a thread can be woken for each.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._put_bytes = self._dealt_with_bytes = 0
        self._lost_before, self._lost_behind = 0, 0  # what is missing in front of the waiting bytes, and behind them
        self._closed, self._hurry_to_bytes = False, 0
        self._thread = threading.Thread(target=self._write, name="rank-log", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Keep some output; never waits for the disk."""
        with self._changed:
            if not self._waiting:
                self._changed.notify_all()
            if self._lost_behind or len(self._waiting) + len(chunk) > _MOST_WAITING_BYTES:
                self._lost_behind += len(chunk)
            else:
                self._waiting += chunk
                self._put_bytes += len(chunk)

    def flush(self, wait_s: float) -> None:
        """Let what was put so far reach the file, for `wait_s` at most."""
        with self._changed:
            put_bytes = self._hurry_to_bytes = self._put_bytes
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._dealt_with_bytes >= put_bytes, wait_s)

    def close(self, wait_s: float) -> None:
        """Let the last lines reach the disk, for `wait_s` at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(wait_s)

    def _write(self) -> None:
        log, last, written_at_s = self._open(), False, -_GATHER_S
        while not last:
            lost_bytes, waiting, last = self._next(written_at_s + _GATHER_S)
            self._keep(log, lost_bytes, waiting)
            written_at_s = time.monotonic()

    def _next(self, not_before_s: float) -> Tuple[int, bytearray, bool]:
        """How much is missing, what comes after it, and whether nothing more will; waits until there is something, and it is time."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            gather_s = not_before_s - time.monotonic()
            self._changed.wait_for(lambda: self._closed or self._dealt_with_bytes < self._hurry_to_bytes, gather_s)
            lost_bytes, waiting = self._lost_before, self._waiting
            self._waiting = bytearray()
            self._lost_before, self._lost_behind = self._lost_behind, 0
            return lost_bytes, waiting, self._closed and not self._lost_before

    def _open(self) -> int:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.write(2, one_line(f"the log {self.path} is not kept: {problem.strerror}"))
            return -1

    def _keep(self, log: int, lost_bytes: int, waiting: bytearray) -> None:
        notice = b"\n[rankpatrol: %d bytes of this log could not be kept]\n" % lost_bytes if lost_bytes else b""
        written = _write_all(log, notice + waiting) if log >= 0 else 0
        with self._changed:
            self._dealt_with_bytes += len(waiting)
            self._lost_before += (lost_bytes if written < len(notice) else 0) + len(waiting) - max(0, written - len(notice))
            self._changed.notify_all()


def one_line(what: str) -> bytes:
    """A line to the user. A name in it may hold what would steer a terminal."""
    words = "".join(character if character.isprintable() else "?" for character in what)
    return f"rankpatrol: {words}\n".encode(errors="backslashreplace")


def _write_all(descriptor: int, chunk: bytes) -> int:
    """How much of it could be written."""
    written = 0
    with contextlib.suppress(OSError):
        while written < len(chunk):
            written += os.write(descriptor, memoryview(chunk)[written:])
    return written
