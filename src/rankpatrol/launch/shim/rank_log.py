"""The rank's log file, on a disk that may be slow, full or gone while the training goes on."""

from __future__ import annotations

import contextlib
import os
import queue
import threading

_QUEUE_CHUNKS = 1024


class RankLog:
    """Written by a thread of its own, which alone touches the disk; what it cannot keep is counted, and the count is kept."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lost_bytes, self._lock = 0, threading.Lock()
        self._queue: queue.Queue[bytes | threading.Event | None] = queue.Queue(_QUEUE_CHUNKS)
        self._thread = threading.Thread(target=self._write, name="rank-log", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Keep some output; never waits."""
        try:
            self._queue.put_nowait(chunk)
        except queue.Full:
            self._count_lost(len(chunk))

    def flush(self, wait_s: float) -> None:
        """Let what was put so far reach the file, for `wait_s` at most."""
        written = threading.Event()
        with contextlib.suppress(queue.Full):
            self._queue.put(written, timeout=wait_s)
            written.wait(wait_s)

    def close(self, wait_s: float) -> None:
        """Let the last lines reach the disk, for `wait_s` at most."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=wait_s)
            self._thread.join(wait_s)

    def _write(self) -> None:
        log = self._open()
        for chunk in iter(self._queue.get, None):
            if isinstance(chunk, bytes):
                self._keep(log, chunk)
            elif isinstance(chunk, threading.Event):
                chunk.set()
        self._keep(log, b"")

    def _open(self) -> int:
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            with contextlib.suppress(OSError):
                os.write(2, one_line(f"the log {self.path} is not kept: {problem.strerror}"))
            return -1

    def _keep(self, log: int, chunk: bytes) -> None:
        lost = self._lost_bytes
        notice = b"\n[rankpatrol: %d bytes of this log could not be kept]\n" % lost if lost else b""
        if log >= 0 and _write_all(log, notice + chunk):
            self._count_lost(-lost)
        else:
            self._count_lost(len(chunk))

    def _count_lost(self, count: int) -> None:
        with self._lock:
            self._lost_bytes += count


def one_line(what: str) -> bytes:
    """A line to the user. A name in it may hold what would steer a terminal."""
    words = "".join(character if character.isprintable() else "?" for character in what)
    return f"rankpatrol: {words}\n".encode(errors="backslashreplace")


def _write_all(descriptor: int, chunk: bytes) -> bool:
    view = memoryview(chunk)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return False
    return True
