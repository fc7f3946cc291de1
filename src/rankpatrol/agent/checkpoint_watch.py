"""Keeps "the newest good checkpoint" known before it is needed, on a thread that may hang with its file system."""

import threading
from pathlib import Path

from rankpatrol.act.plan import Verified
from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.report import Selection
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing

_EVERY_S = 5.0


class CheckpointWatch:
    """Looks every few seconds, and at once when asked. Files that did not change are not read again."""

    def __init__(self, directory: str | None) -> None:
        self._directory = Path(directory) if directory else None
        self._verifier = Verifier()
        self._asked = threading.Event()
        self._round = threading.Condition()
        self._begun = self._done = 0
        self._latest: Selection | Missing = Missing("no --checkpoints directory was given" if directory is None else "not looked at yet")
        if self._directory is not None:
            threading.Thread(target=self._keep_looking, args=(self._directory,), name="checkpoints", daemon=True).start()

    def now(self, deadline_s: float) -> Selection | Missing:
        """The result of a look that began after this call; the last known one where the deadline passes first."""
        if self._directory is None:
            return self._latest
        with self._round:
            # A round that has begun may have listed the directory before we asked: the one after it has not.
            wanted = self._begun + 1
            self._asked.set()
            self._round.wait_for(lambda: self._done >= wanted, deadline_s)
        return self._latest

    def latest(self) -> Selection | Missing:
        """What is known, without waiting."""
        return self._latest

    def _keep_looking(self, directory: Path) -> None:
        while True:
            self._asked.clear()
            with self._round:
                self._begun += 1
            try:
                self._latest = newest_good(directory, self._verifier)
            except (PatrolError, OSError) as problem:
                self._latest = Missing(str(problem))
            with self._round:
                self._done = self._begun
                self._round.notify_all()
            self._asked.wait(_EVERY_S)


def verified(selection: Selection | Missing) -> Verified | None:
    """The checkpoint to resume from, or None where none is known to be good."""
    if isinstance(selection, Missing) or selection.newest_good is None:
        return None
    return Verified(path=selection.newest_good.path, step=selection.newest_good.step)
