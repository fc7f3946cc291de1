"""Tells a signal that the whole process group got from one that was meant for us alone."""

import contextlib
import ctypes
import os
import select
import signal
import struct
import time
from collections.abc import Collection

# kill(2) reaches the members of a group one after another: microseconds, unless the machine is very busy.
_HEARS_WITHIN_S = 0.2
_PR_SET_PDEATHSIG = 1
_WORD = struct.Struct("id")  # signal, monotonic time


class GroupWitness:
    """A small process in our group that does nothing but hear. What it hears, CMD beside it has heard as well, and needs no second time.

    torchrun's handlers raise: a second SIGTERM breaks off the shutdown that the first began, and the ranks' clean-up with it.
    `timeout`, Slurm and a shell's `kill %1` signal whole groups.
    """

    def __init__(self, signals: Collection[signal.Signals]) -> None:
        self._pid, self._heard = -1, -1
        self._at_mono_s: dict[int, float] = {}
        parent = os.getpid()
        with contextlib.suppress(OSError):  # none to be had: every signal is passed on
            self._heard, told = os.pipe()
            self._pid = os.fork()
            if self._pid == 0:
                _listen(signals, told, parent)
            os.close(told)

    def heard(self, number: int) -> bool:
        """True where it got this signal too, just now."""
        until = time.monotonic() + _HEARS_WITHIN_S
        while self._at_mono_s.pop(number, 0.0) < until - 2 * _HEARS_WITHIN_S:
            if not self._learn(max(0.0, until - time.monotonic())):
                return False
        return True

    def _learn(self, wait_s: float) -> bool:
        """Its next word; False when none came, or it has gone."""
        if self._pid < 0 or not select.select([self._heard], [], [], wait_s)[0]:
            return False
        word = os.read(self._heard, _WORD.size)
        if word:
            number, at_mono_s = _WORD.unpack(word)
            self._at_mono_s[number] = at_mono_s
        return bool(word)

    def dismiss(self) -> None:
        """End it. It is our child and not reaped yet, so its pid is its own."""
        if self._pid > 0:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._heard)
            self._pid = -1


def _listen(signals: Collection[signal.Signals], told: int, parent: int) -> None:
    """The witness's life. The signals are blocked already; it goes with its parent."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        while os.getppid() == parent:
            number = signal.sigwait(signals)
            os.write(told, _WORD.pack(number, time.monotonic()))
    finally:
        os._exit(0)
