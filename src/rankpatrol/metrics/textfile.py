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
        self._asked, self._parted = threading.Event(), threading.Event()
        self._parting: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="metrics-file", daemon=True).start()

    def last_word(self, deadline_s: float) -> None:
        """Write once more, and no more after that; a folder that does not answer is left behind."""
        self._part(self._write, deadline_s)

    def withdraw(self, deadline_s: float) -> None:
        """Take the file away: the job goes on without us."""
        self._part(self._remove, deadline_s)

    def _part(self, parting: Callable[[], None], deadline_s: float) -> None:
        self._parting = parting
        self._asked.set()
        self._parted.wait(deadline_s)

    def _run(self) -> None:
        _sweep(self.path)
        while True:
            self._asked.wait(self._every_s)
            self._asked.clear()
            parting = self._parting
            (parting or self._write)()
            if parting is not None:
                self._parted.set()
                return

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

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


_SAID = "The patrol goes on, and they are written as soon as that is possible"


def _sweep(ours: Path) -> None:
    """Remove what jobs left here that ended more than a day ago."""
    oldest_s = time.time() - _KEPT_S
    with contextlib.suppress(OSError):
        for path in list(ours.parent.glob(f"{_PREFIX}*{_SUFFIX}")):
            with contextlib.suppress(OSError):
                if path != ours and path.lstat().st_mtime < oldest_s:
                    path.unlink()
