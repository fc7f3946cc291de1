"""Writes metrics where node_exporter's textfile collector reads them: one file a job, replaced whole, on a thread of its own."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rankpatrol.metrics.collector import Source, exposition
from rankpatrol.system.files import write_atomic

EVERY_S = 15.0
# The last word of a job stays for a day, so that its end is seen; a job that runs writes every few seconds.
_KEPT_S = 86400.0
_PREFIX, _SUFFIX = "rankpatrol-", ".prom"


class MetricsFile:
    """Keeps one job's file. What the folder refuses is told once, and tried again with the next round."""

    def __init__(self, folder: Path, job: str, source: Source, tell: Callable[[str, str], None], *, every_s: float = EVERY_S) -> None:
        self.path = folder / f"{_PREFIX}{job}{_SUFFIX}"
        self._source, self._tell, self._every_s = source, tell, every_s
        self._told = False
        self._asked, self._written = threading.Event(), threading.Event()
        self._last = False
        threading.Thread(target=self._run, name="metrics-file", daemon=True).start()

    def last_word(self, deadline_s: float) -> None:
        """Write once more, and no more after that; a folder that does not answer is left behind."""
        self._last = True
        self._asked.set()
        self._written.wait(deadline_s)

    def _run(self) -> None:
        _sweep(self.path)
        while True:
            self._asked.wait(self._every_s)
            last = self._last
            self._write()
            if last:
                self._written.set()
                return
            self._asked.clear()

    def _write(self) -> None:
        readings = tuple(self._source())
        if not readings:
            return
        try:
            write_atomic(self.path, exposition(readings))
            self.path.chmod(0o644)  # node_exporter has a user of its own
        except OSError as problem:
            if not self._told:
                self._tell(f"metrics are not written: {self.path}: {problem.strerror}. {_SAID}", "alert")
            self._told = True


_SAID = "The patrol goes on, and they are written as soon as that is possible"


def _sweep(ours: Path) -> None:
    """Remove what jobs left here that ended more than a day ago."""
    oldest_s = time.time() - _KEPT_S
    with contextlib.suppress(OSError):
        for path in list(ours.parent.glob(f"{_PREFIX}*{_SUFFIX}")):
            with contextlib.suppress(OSError):
                if path != ours and path.lstat().st_mtime < oldest_s:
                    path.unlink()
