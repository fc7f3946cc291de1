"""When which step was told: by the training's own lines, in whatever file they arrive."""

import re
from collections.abc import Iterable
from pathlib import Path

_STEP = re.compile(rb"step (\d+)/\d+ loss")
_CUT_BYTES = 64  # longer than any step line's beginning


class StepWatch:
    """Keeps when each step was first seen in the files it is shown."""

    def __init__(self) -> None:
        self._offsets: dict[Path, int] = {}
        self.first_seen_unix_s: dict[int, float] = {}

    @property
    def last(self) -> int:
        """The highest step seen, 0 before the first."""
        return max(self.first_seen_unix_s, default=0)

    def look(self, files: Iterable[Path], *, at_unix_s: float) -> None:
        """Read what the files gained; a line cut by the end of the file is read again, and the first sight of a step stays."""
        for path in files:
            try:
                with path.open("rb") as lines:
                    lines.seek(max(0, self._offsets.get(path, 0) - _CUT_BYTES))
                    text = lines.read()
                    self._offsets[path] = lines.tell()
            except FileNotFoundError:
                continue
            for found in _STEP.finditer(text):
                self.note(int(found[1]), at_unix_s)

    def note(self, step: int, at_unix_s: float) -> None:
        """A step told by someone else; the earliest word counts."""
        self.first_seen_unix_s[step] = min(at_unix_s, self.first_seen_unix_s.get(step, at_unix_s))
