"""One rank's growing log, read a piece at a time."""

import os
import re
import stat
from collections import deque

from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample
from rankpatrol.formats.losses import LossMark, find_loss
from rankpatrol.formats.steps import StepMark, find_step, further

_ROUND_BYTES = 256 << 10
_TAIL_LINES = 200
_TAIL_CHARACTERS = 32 << 10
_LINE_CHARACTERS = 2000
_PARTIAL_BYTES = 64 << 10
_LOSSES = 10

_ENDS = re.compile(rb"([\r\n])")

# ECMA-48: control sequences, operating system commands (window titles, links), and other escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class LogTail:
    """Follows one log file. It never raises for what the file holds; a file system that hangs makes it hang too."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._partial = b""
        self._shown = ""
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._mark: StepMark | None = None
        self._losses: deque[LossMark] = deque(maxlen=_LOSSES)
        self._lost_at_step: int | None = None

    def read(self) -> LogSample | Missing:
        """What is new since the last call, at most 256 KiB of it: what came before that is skipped."""
        try:
            # Not to wait for a writer, should the path be a FIFO: fifo(7).
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                size = self._read_new(file)
            finally:
                os.close(file)
        except OSError as problem:
            return Missing(f"cannot read the log {self._path}: {problem.strerror}")
        if size is None:
            return Missing(f"the log {self._path} is no regular file")
        return LogSample(
            size_bytes=size,
            tail=self._tail(),
            step=None if self._mark is None else self._mark.step,
            losses=tuple(loss.text for loss in self._losses),
            loss_lost=bool(self._losses) and self._losses[-1].lost,
            lost_at_step=self._lost_at_step if self._losses and self._losses[-1].lost else None,
        )

    def _read_new(self, file: int) -> int | None:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return None
        if self._file != (about.st_dev, about.st_ino) or about.st_size < self._offset:
            self._file = (about.st_dev, about.st_ino)
            self._jump(0)
        if about.st_size - self._offset > _ROUND_BYTES:
            self._jump(about.st_size - _ROUND_BYTES)
        data = os.pread(file, _ROUND_BYTES, self._offset)
        self._offset += len(data)
        self._take(data)
        return about.st_size

    def _jump(self, offset: int) -> None:
        """Go on elsewhere: what was kept does not belong before what comes now."""
        self._offset = offset
        self._partial, self._shown = b"", ""
        if offset:
            self._lines.clear()

    def _take(self, data: bytes) -> None:
        *ended, rest = _ENDS.split(self._partial + data)
        for part, end in zip(ended[::2], ended[1::2], strict=True):
            text = _readable(part)
            self._mark = further(self._mark, find_step(text))
            self._follow_loss(text)
            # A terminal shows what was written last over the line: fill in for a carriage return before the line's end.
            self._shown = text or self._shown
            if end == b"\n":
                self._lines.append(self._shown)
                self._shown = ""
        self._partial = rest[-_PARTIAL_BYTES:]
        if not data:
            # A number at the end of an unended line may still grow, so it counts when nothing came for a round.
            self._mark = further(self._mark, find_step(_readable(self._partial)))

    def _follow_loss(self, text: str) -> None:
        loss = find_loss(text)
        if loss is None:
            return
        if loss.lost and not (self._losses and self._losses[-1].lost):
            self._lost_at_step = None if self._mark is None else self._mark.step
        self._losses.append(loss)

    def _tail(self) -> tuple[str, ...]:
        unended = _readable(self._partial) or self._shown
        lines = [*self._lines, unended] if unended else list(self._lines)
        kept: list[str] = []
        room = _TAIL_CHARACTERS
        for line in reversed(lines[-_TAIL_LINES:]):
            room -= len(line) + 1
            if room < 0:
                break
            kept.append(line)
        return tuple(reversed(kept))


def _readable(part: bytes) -> str:
    """The text without colours, controls and endless length."""
    text = part[: 4 * _LINE_CHARACTERS].decode(errors="replace").rstrip()
    if not text.isprintable():
        text = _CONTROLS.sub("", _ESCAPES.sub("", text)).rstrip()
    return text if len(text) <= _LINE_CHARACTERS else text[:_LINE_CHARACTERS] + "…"
