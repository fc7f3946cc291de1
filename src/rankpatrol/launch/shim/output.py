"""The rank's output: passed on unchanged, and kept in its log."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import stat
import termios
import threading
import time
from typing import List, Optional

from rankpatrol.launch.shim.rank_log import RankLog, one_line

DRAIN_S = 1.0
_CHUNK_BYTES = 16384
_SAY_WAIT_MS = 500
# What a rank prints often is read twenty times a second: each reading takes some 50 to 150 us of a CPU from its steps.
_OFTEN_S, _GATHER_S = 0.1, 0.05
# A rank that prints this much at once would fill its pipe (64 KiB, pipe(7)) meanwhile, and wait for us.
_MUCH_BYTES, _MUCH_IS_OVER_S = 4096, 1.0
# Whoever read there has gone for good. Anything else (a full disk, say) may pass.
_NO_READER = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET)


def say(what: str) -> None:
    """One line to the user, on the launcher's own error stream; dropped where nobody reads it, so that nothing waits."""
    with contextlib.suppress(OSError):
        if _poll(2, select.POLLOUT, _SAY_WAIT_MS):
            os.write(2, one_line(what))


class Outlet:
    """One of the rank's output streams. A terminal stays a terminal for the rank: colours, progress bars and buffering do not change."""

    def __init__(self, target_fd: int) -> None:
        self._terminal = os.isatty(target_fd)
        if self._terminal:
            self._source_fd, self.rank_fd = os.openpty()
            _pass_newlines(self.rank_fd)
        else:
            self._source_fd, self.rank_fd = os.pipe()
        self._target_fd = _never_waiting(target_fd)
        self._target_waits = self._target_fd == target_fd
        self._stop_fd, self._told_to_stop = os.pipe()
        self._pending = memoryview(b"")
        self._beside: Outlet | None = None
        self._lets_gather, self._read_at_s, self._much_at_s = False, -_OFTEN_S, -_MUCH_IS_OVER_S
        self._has_passed_on = threading.Event()  # unset while there may be output that came before that of the outlet beside this one
        self._has_passed_on.set()
        self._thread: threading.Thread | None = None
        self.done = False
        self.resize()

    @classmethod
    def pair(cls, one_fd: int, other_fd: int) -> list[Outlet]:
        """Two streams of one rank, which keep the order in which it prints here and there, as far as that can be seen."""
        one, other = cls(one_fd), cls(other_fd)
        one._beside, other._beside = other, one
        return [one, other]

    def resize(self) -> None:
        """Give the pseudo-terminal the size of the real one."""
        target = self._target_fd  # once: the thread that writes may find it closed
        if self._terminal and target >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._source_fd, termios.TIOCSWINSZ, fcntl.ioctl(target, termios.TIOCGWINSZ, b"\0" * 8))

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
        return self.done

    def stop(self) -> None:
        """Stand still between two writes, so that another process can go on from here without a byte lost or doubled."""
        os.write(self._told_to_stop, b"x")
        self.wait(1.0)
        os.read(self._stop_fd, 1)

    def descriptors(self) -> set[int]:
        """What whoever goes on from here needs."""
        return {self._source_fd, self._target_fd, self._stop_fd, self._told_to_stop}

    def _run(self, log: RankLog | None) -> None:
        source = _either(self._source_fd, select.POLLIN, self._stop_fd)
        while self._pass_on() and self._more_comes(source):
            chunk = self._read()
            if not chunk:
                self.done = True
                break
            if log is not None:
                log.put(chunk)
            self._pending = memoryview(chunk)
        self._has_passed_on.set()

    def _more_comes(self, source: select.poll) -> bool:
        """Wait for output; False when told to stop before."""
        self._has_passed_on.set()
        if self._lets_gather:
            self._has_passed_on.clear()
            self._gather()
            if not source.poll(0):
                self._has_passed_on.set()
        if not self._goes_on(source):
            return False
        self._after_the_other()
        return True

    def _gather(self) -> None:
        """Let some lines come together, until the rank prints on its other stream as well: what came here before has to go first."""
        pause, beside = select.poll(), self._beside
        pause.register(self._stop_fd, select.POLLIN)
        if beside is not None and not beside.done:
            pause.register(beside._source_fd, select.POLLIN)
        pause.poll(_GATHER_S * 1e3)

    def _after_the_other(self) -> None:
        """Wait a moment for what the rank printed on its other stream before."""
        beside = self._beside
        if beside is not None and self._has_passed_on.is_set() and not beside._has_passed_on.wait(_GATHER_S):
            beside._has_passed_on.set()  # its reader stands still: not waited for again

    def _pass_on(self) -> bool:
        """Write all that is pending; False when told to stop before.

        What never waits is written at once: to ask first would cost every line of the rank a call more.
        """
        waits = self._target_waits
        while self._pending:
            if waits and self._target_fd >= 0 and not self._goes_on(_either(self._target_fd, select.POLLOUT, self._stop_fd)):
                return False
            written = self._write()
            if waits and not written:
                time.sleep(0.01)  # another rank was quicker to take the room there was
            waits = self._target_waits or not written
            self._pending = self._pending[written:]
        return True

    def _write(self) -> int:
        """How many of the pending bytes are dealt with now; where nobody reads any more, all: the rank itself is not harmed by it."""
        if self._target_fd < 0:
            return len(self._pending)
        try:
            return os.write(self._target_fd, self._pending)
        except BlockingIOError:
            return 0
        except OSError as problem:
            if problem.errno in _NO_READER:
                self._target_fd = -1
            return len(self._pending)

    def _goes_on(self, either: select.poll) -> bool:
        """Wait for a descriptor; False when told to stop."""
        return all(seen != self._stop_fd for seen, _ in either.poll())

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._source_fd, _CHUNK_BYTES)
        except OSError:  # a pseudo-terminal answers EIO when its other side is closed (pty(7))
            return b""
        before, self._read_at_s = self._read_at_s, time.monotonic()
        if len(chunk) >= _MUCH_BYTES:
            self._much_at_s = self._read_at_s
        # A terminal has less room than a pipe, and somebody who looks at it.
        self._lets_gather = (
            not self._terminal and self._read_at_s - before < _OFTEN_S and self._read_at_s - self._much_at_s > _MUCH_IS_OVER_S
        )
        return chunk


def _either(descriptor: int, event: int, stop_fd: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, event)
    poll.register(stop_fd, select.POLLIN)
    return poll


def _poll(descriptor: int, event: int, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(wait_ms))


def _never_waiting(descriptor: int) -> int:
    """The same pipe or terminal, opened anew: O_NONBLOCK on the shared description would change it for all who write there (open(2))."""
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        pass  # another user's: written as it is
    return descriptor


def _pass_newlines(terminal: int) -> None:
    """Let bytes through as they are: the real terminal translates newlines already."""
    with contextlib.suppress(termios.error):
        mode = termios.tcgetattr(terminal)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(terminal, termios.TCSANOW, mode)


def drain(outlets: List[Outlet], log: Optional[RankLog], drain_s: float) -> None:
    """Pass on what is still on its way; what takes longer (an uploader after a good end, a paused pager) gets a process of its own."""
    until = time.monotonic() + drain_s
    still_open = [outlet for outlet in outlets if not outlet.wait(max(0.0, until - time.monotonic()))]
    for outlet in still_open:
        outlet.stop()
    if log is not None:
        log.close(drain_s)
    still_open = [outlet for outlet in still_open if not outlet.done]
    if still_open:
        with contextlib.suppress(OSError):  # no process to spare: nothing more can be passed on
            if os.fork() == 0:
                _relay(still_open, log.path if log is not None else None)


def _relay(outlets: List[Outlet], log_path: Optional[str]) -> None:
    """Go on passing on until the last writer has gone. Signals are heard and left alone: the writers decide when it is over."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        kept = {0, 1, 2}.union(*(outlet.descriptors() for outlet in outlets))
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        log = RankLog(log_path) if log_path else None
        for outlet in outlets:
            outlet.start(log)
        for outlet in outlets:
            outlet.wait(None)
        if log is not None:
            log.close(DRAIN_S)
    finally:
        os._exit(0)
