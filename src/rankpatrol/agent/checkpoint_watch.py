"""Keeps "the newest good checkpoint" known before it is needed, on a thread that may hang with its file system."""

import contextlib
from pathlib import Path

from rankpatrol.act.plan import Verified
from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.checkpoints.report import Selection
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.system.background import Deed, Rounds

_EVERY_S = 5.0
# What is read to check a checkpoint is taken from the training's storage: not all of it.
_MOST_BYTES_S = 1e9


class CheckpointWatch:
    """Looks every few seconds, and at once when asked. Files that did not change are not read again."""

    def __init__(self, directory: str | None, ledger: Path | None = None, carry: Deed = lambda: None) -> None:
        """What is learned is kept in `ledger`, on a local disk; `carry` is called whenever that file is new."""
        self._rounds = None
        if directory is not None:
            folder, verifier = Path(directory), Verifier(ledger=Ledger(ledger), pace=Pace(_MOST_BYTES_S))
            first: Selection | Missing = Missing("not looked at yet")
            self._rounds = Rounds(lambda: _look(folder, verifier, carry), first, every_s=_EVERY_S, name="checkpoints")

    def now(self, deadline_s: float) -> Selection | Missing:
        """The result of a look that began after this call; the last known one where the deadline passes first."""
        return _NONE if self._rounds is None else self._rounds.now(deadline_s)

    def latest(self) -> Selection | Missing:
        """What is known, without waiting."""
        return _NONE if self._rounds is None else self._rounds.latest()


_NONE = Missing("no --checkpoints directory was given")


def _look(directory: Path, verifier: Verifier, carry: Deed) -> Selection | Missing:
    try:
        selection = newest_good(directory, verifier)
        with contextlib.suppress(OSError):  # a disk that is full shall not hide a good checkpoint
            if verifier.ledger.save():
                carry()
    except (PatrolError, OSError) as problem:
        return Missing(str(problem))
    return selection


def verified(selection: Selection | Missing) -> Verified | None:
    """The checkpoint to resume from, or None where none is known to be good."""
    if isinstance(selection, Missing) or selection.newest_good is None:
        return None
    return Verified(path=selection.newest_good.path, step=selection.newest_good.step)
