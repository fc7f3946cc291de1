"""The rank's output: passed on unchanged, and kept in its log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import termios
import threading
import time
from typing import List, Optional

DRAIN_S = 1.0
_QUEUE_CHUNKS, _CHUNK_BYTES = 1024, 16384


def write_all(descriptor: int, chunk: bytes) -> bool:
    """Write everything; False once nobody reads there any more, so that the rank itself is not harmed by it."""
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            return False
    return True


def say(what: str) -> None:
    """One line to the user, on the launcher's own error stream."""
    write_all(2, f"rankpatrol: {what}\n".encode())


class RankLog:
    """The rank's log file, written by a thread that may wait on a slow or full disk while the training goes on."""

    def __init__(self, path: str) -> None:
        self._path, self._dropped_bytes = path, 0
        self._queue: queue.Queue[bytes | None] = queue.Queue(_QUEUE_CHUNKS)
        self._thread = threading.Thread(target=self._write, name="rank-log", daemon=True)
        self._thread.start()

    def put(self, chunk: bytes) -> None:
        """Keep some output; never waits, counts what does not fit."""
        try:
            self._queue.put_nowait(chunk)
        except queue.Full:
            self._dropped_bytes += len(chunk)

    def close(self) -> None:
        """Let the last lines reach the disk, for DRAIN_S at most."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=DRAIN_S)
            self._thread.join(DRAIN_S)

    def _write(self) -> None:
        try:
            log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            say(f"the log {self._path} is not kept: {problem.strerror}")
            log = -1
        for chunk in iter(self._queue.get, None):
            if log >= 0 and not write_all(log, self._owed() + chunk):
                self._dropped_bytes += len(chunk)

    def _owed(self) -> bytes:
        dropped, self._dropped_bytes = self._dropped_bytes, 0
        return b"\n[rankpatrol: %d bytes of this log could not be kept]\n" % dropped if dropped else b""


class Outlet:
    """One of the rank's output streams. A terminal stays a terminal for the rank: colours, progress bars and buffering do not change."""

    def __init__(self, target_fd: int) -> None:
        self._target_fd = target_fd
        if os.isatty(target_fd):
            self._source_fd, self.rank_fd = os.openpty()
            self.resize()
            _pass_newlines(self.rank_fd)
        else:
            self._source_fd, self.rank_fd = os.pipe()
        self._thread: threading.Thread | None = None

    def resize(self) -> None:
        """Give the pseudo-terminal the size of the real one."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._source_fd, termios.TIOCSWINSZ, fcntl.ioctl(self._target_fd, termios.TIOCGWINSZ, b"\0" * 8))

    def pump(self, log: RankLog | None) -> None:
        """Begin to pass on; to be called once the rank has its side."""
        os.close(self.rank_fd)
        self.start(log)

    def start(self, log: RankLog | None) -> None:
        """Read on a thread of its own: a reader of ours that stands still (a paused pager) must not stop the shim."""
        self._thread = threading.Thread(target=self._run, args=(log,), daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None) -> bool:
        """True when the rank's side is closed and all is passed on."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self, log: RankLog | None) -> None:
        open_target = True
        while chunk := self._read():
            if log is not None:
                log.put(chunk)
            open_target = open_target and write_all(self._target_fd, chunk)

    def _read(self) -> bytes:
        try:
            return os.read(self._source_fd, _CHUNK_BYTES)
        except OSError:  # a pseudo-terminal answers EIO when its other side is closed (pty(7))
            return b""


def _pass_newlines(terminal: int) -> None:
    """Let bytes through as they are: the real terminal translates newlines already."""
    with contextlib.suppress(termios.error):
        mode = termios.tcgetattr(terminal)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(terminal, termios.TCSANOW, mode)


def drain(outlets: List[Outlet], log: Optional[RankLog]) -> None:
    """Pass on what is still on its way. A descendant that outlives a good end (an uploader) gets a reader of its own."""
    until = time.monotonic() + DRAIN_S
    still_open = [outlet for outlet in outlets if not outlet.wait(max(0.0, until - time.monotonic()))]
    if log is not None:
        log.close()
    if still_open and os.fork() == 0:
        os.setsid()
        for outlet in still_open:
            outlet.start(None)
        for outlet in still_open:
            outlet.wait(None)
        os._exit(0)
