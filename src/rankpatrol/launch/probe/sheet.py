# ruff: file-ignore[builtin-open] - pathlib is a slow import for a user's interpreter
"""The rank's marks: plain stores into memory that its shim holds as well. No lock, no system call but the clock's."""

from __future__ import annotations

import mmap
import os
import struct
import time

from . import layout


def now_ns() -> int:
    """CLOCK_BOOTTIME: it goes on while the machine is suspended, and the patrol reads the same."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def open_marks(descriptor: int) -> Sheet | None:
    """The sheet behind an inherited descriptor, which is closed; None where another file wears its number."""
    try:
        if os.fstat(descriptor).st_size != layout.SIZE_BYTES or os.pread(descriptor, 8, 0) != layout.MAGIC:
            return None
        memory = mmap.mmap(descriptor, layout.SIZE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError:
        return None
    os.close(descriptor)
    return Sheet(memoryview(memory))


class Sheet:
    """What the rank marks. After a fork the child's marks go nowhere."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        # A memoryview of machine words stores each in one piece; struct's "<" formats store byte by byte.
        self.words = memory.cast("Q")
        self.base = layout.INITIALISATION
        self._saves, self._compiles = 0, False

    def sign(self) -> None:
        """The probe is here."""
        self.words[layout.STACK_START] = _stack_start()
        self.begin(layout.INITIALISATION)
        self.words[layout.PID] = os.getpid()

    def detach(self) -> None:
        """Mark into memory of our own from now on: a forked child is no rank."""
        self._memory = memoryview(bytearray(layout.SIZE_BYTES))
        self.words = self._memory.cast("Q")

    def begin(self, phase: int) -> None:
        """Enter a phase; a save or a compilation that goes on hides it until it ends."""
        self.base = phase
        self._show()

    def saving(self, by: int) -> None:
        """One save more (1) or less (-1) is going on in the main thread."""
        self._saves += by
        self._show()

    def compiling(self, is_on: bool) -> None:
        """A compilation has begun or ended."""
        self._compiles = is_on
        self._show()

    def flag(self, which: int) -> None:
        """Say for good that something is so."""
        self.words[layout.FLAGS] |= which

    def unflag(self, which: int) -> None:
        """Say that something is so no more."""
        self.words[layout.FLAGS] &= ~which

    def raises(self) -> None:
        """The program has ended with an exception; its interpreter, with all that torch holds, may take seconds to go down."""
        if not self.words[layout.RAISED_NS]:
            self.words[layout.RAISED_NS] = now_ns()

    def write_groups(self, text: bytes) -> None:
        """Replace the groups. What does not fit is the caller's to leave out."""
        sequence = self.words[layout.GROUPS_SEQUENCE] + 1
        at = layout.AREAS_AT[sequence % 2]
        struct.pack_into("<I", self._memory, at, len(text))
        self._memory[at + 4 : at + 4 + len(text)] = text
        self.words[layout.GROUPS_SEQUENCE] = sequence

    def _show(self) -> None:
        phase = layout.COMPILE if self._compiles else layout.CHECKPOINT if self._saves > 0 else self.base
        before = self.words[layout.PHASE]
        if before == 0 or before % layout.PHASE_CODES != phase:
            self.words[layout.PHASE] = now_ns() * layout.PHASE_CODES + phase


def _stack_start() -> int:
    try:
        with open("/proc/self/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[25])
    except (OSError, ValueError, IndexError):
        return 0
