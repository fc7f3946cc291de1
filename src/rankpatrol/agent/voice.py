"""What the agent says to people: a line for each event, and on a terminal one live line at its foot."""

import os
import sys
import time
from collections.abc import Callable

from rankpatrol.core.plain import plain
from rankpatrol.evidence.redact import redact_text

_STYLES = {"alert": "33;1", "verdict": "31;1", "good": "32", "plain": "36", "dim": "2"}
_MARKS = {"alert": "▲", "verdict": "■", "good": "✓", "plain": "●", "dim": "·"}


class Voice:
    """Writes to one stream. Colour and the live line only on a terminal; NO_COLOR is heard; a stream that is gone is no matter.

    What it is given may hold words of logs: secrets are taken out, and nothing of it steers the terminal.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._live = os.isatty(descriptor) and os.environ.get("TERM", "dumb") != "dumb"
        self._colour = self._live and not os.environ.get("NO_COLOR")
        self._rows = 0

    def say(self, what: str, style: str = "plain") -> None:
        """One event: when, and what."""
        now, what = time.strftime("%H:%M:%S"), plain(redact_text(what))
        if self._live:
            self._write(f"{self._paint(f'{now} rankpatrol {_MARKS[style]}', style)} {what}\n")
        else:
            kind = f" {style}:" if style in {"alert", "verdict"} else ""
            self._write(f"{now} rankpatrol:{kind} {what}\n")

    def show(self, status: str, style: str = "dim") -> None:
        """Draw the live line in the terminal's last row, which is kept out of scrolling (DECSTBM), as package managers do it."""
        if not self._live:
            return
        try:
            columns, rows = os.get_terminal_size(self._descriptor)
        except OSError:
            return
        if rows < 4:
            return
        begin = "" if rows == self._rows else f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A"
        self._rows = rows
        line = f"rankpatrol {_MARKS[style]} {plain(redact_text(status))}"[: columns - 1]
        self._write(f"{begin}\x1b7\x1b[{rows};1H\x1b[2K{self._paint(line, style)}\x1b8")

    def rest(self) -> None:
        """Give the terminal back as it was."""
        if self._rows:
            release_terminal(self._write, self._rows)
            self._rows = 0

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour else text

    def _write(self, text: str) -> None:
        try:
            os.write(self._descriptor, text.encode(errors="backslashreplace"))
        except OSError:
            self._live = False


def release_terminal(write: Callable[[str], object], rows: int) -> None:
    """Undo the live line: scrolling over all rows again, the last row empty, the cursor where it was."""
    write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8")


def stderr_voice() -> Voice:
    """The voice on this process's error stream."""
    return Voice(sys.stderr.fileno())
