"""How each rank ended, by its shim, its probe and its log."""

import re

from rankpatrol.analysis.frames import is_users, say_frame
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import LogSample, Marks, RankSample, Snapshot
from rankpatrol.formats.failures import Failure, FatalWords, fatal_words, last_failure

# torchrun ends the others and starts the next attempt within a second of the first failure.
ENDS_BY_ITSELF = "the launcher sees the exit, and ends and restarts the job itself"
SIGTERM = -15
# Whoever is told to end, or killed, has written no such words: they are of a process before it.
_WITHOUT_WORDS = frozenset({-1, -2, -9, SIGTERM})
# faulthandler writes up to a hundred frames of each of up to a hundred threads; those of a training are few.
_LAST_WORDS = 400
# A traceback is in its rank's pipe before the mark, and in its log 0.1 to 0.2 s after it; on a starved machine later.
_ON_ITS_WAY_S = 1.0
_RAISED = 1  # what Python makes of an exception that nobody handles
_NUMBER = re.compile(r"\d+")


class End(Record, frozen=True, kw_only=True):
    """One rank's end: when, how, and what its log says of it."""

    rank: int
    status: int
    goes_down: bool
    at_unix_s: float
    failure: Failure
    tail: tuple[str, ...]

    def first_cause(self) -> bool:
        """False where its log only echoes another rank's end."""
        return self.status < 0 or not self.failure.echo

    def is_like(self, other: "End") -> bool:
        """True where both failed of the same: an exception in the same line, or an exit code with the same last words.

        Signals are left out: an abort is what a library does to victims too.
        """
        if self.status != other.status or self.status < 0:
            return False
        if self.failure.exception is None:
            return other.failure.exception is None and _NUMBER.sub("", self.last_line()) == _NUMBER.sub("", other.last_line())
        if self.failure.loader is not None and other.failure.loader is not None:
            return self.failure.loader.signal == other.failure.loader.signal
        return (self.failure.exception, self.failure.place) == (other.failure.exception, other.failure.place)

    def fatal(self) -> FatalWords | None:
        """What it said when a signal killed it."""
        return fatal_words(self.tail[-_LAST_WORDS:]) if self.status < 0 and self.status not in _WITHOUT_WORDS else None

    def place(self) -> str | None:
        """The line of code that it failed in."""
        fatal = self.fatal()
        if fatal is None or not fatal.frames:
            return self.failure.place
        return say_frame(next((frame for frame in fatal.frames if is_users(frame)), fatal.frames[0]))

    def last_line(self) -> str:
        """The last words of its log."""
        return next((line.strip() for line in reversed(self.tail) if line.strip()), "")


def end_of(snapshot: Snapshot, sample: RankSample) -> End | None:
    """How this rank ended, or None while it has not."""
    raised_at_s = sample.marks.raised_at_mono_s if isinstance(sample.marks, Marks) else None
    tail = sample.log.tail if isinstance(sample.log, LogSample) else ()
    failure = last_failure(tail)
    if failure.exception is None or (raised_at_s is not None and snapshot.at_mono_s - raised_at_s < _ON_ITS_WAY_S):
        raised_at_s = None  # what it raised is not known yet, and may be another's echo
    if _ended_with_its_loader(sample, failure):
        raised_at_s = None
    if sample.exit_status is None and raised_at_s is None:
        return None
    ended_unix_s = sample.ended_unix_s or 0.0
    if raised_at_s is not None:
        raised_unix_s = snapshot.at_unix_s - (snapshot.at_mono_s - raised_at_s)
        ended_unix_s = min(ended_unix_s or raised_unix_s, raised_unix_s)
    return End(
        rank=sample.rank,
        # Whatever ends it on its way down (its launcher, a library of its own) has not begun it.
        status=_RAISED if raised_at_s is not None and sample.exit_status != 0 else sample.exit_status or 0,
        goes_down=sample.exit_status is None,
        at_unix_s=ended_unix_s,
        failure=failure,
        tail=tail,
    )


def _ended_with_its_loader(sample: RankSample, failure: Failure) -> bool:
    """Whoever tells a whole process group to end tells the loader too: its death then began nothing."""
    return sample.exit_status == SIGTERM and failure.loader is not None and failure.loader.signal in {"Terminated", None}
