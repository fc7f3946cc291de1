"""Follows the ranks' logs on a thread that may hang with the job directory's file system."""

import threading

from rankpatrol.collect.logs import LogTail
from rankpatrol.collect.ranks import RankRecord
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample
from rankpatrol.system.background import Rounds
from rankpatrol.system.clock import Clock

# Every round asks for them; this is for who does not.
_EVERY_S = 2.0
_OLD_S = 10.0
Read = tuple[float, dict[str, LogSample | Missing]]


class LogWatch:
    """The logs of one attempt's ranks, as read last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tails: dict[str, LogTail] = {}
        self._lock = threading.Lock()
        first: Read = (clock.mono_s(), {})
        self._rounds = Rounds(self._read, first, every_s=_EVERY_S, name="logs")

    def follow(self, records: tuple[RankRecord, ...]) -> None:
        """Read these ranks' logs from now on, and no others."""
        with self._lock:
            self._tails = {record.log_path: self._tails.get(record.log_path) or LogTail(record.log_path) for record in records}

    def latest(self, record: RankRecord) -> LogSample | Missing:
        """What was read of one rank's log last; Missing once that is old: the file system does not answer."""
        read_at_s, samples = self._rounds.latest()
        age_s = self._clock.mono_s() - read_at_s
        if age_s > _OLD_S:
            return Missing(f"the logs have not been readable for {age_s:.0f} s: their file system does not answer")
        return samples.get(record.log_path, Missing("its log was not read yet"))

    def refresh(self, deadline_s: float) -> None:
        """Have the logs read now, and wait for it at most this long."""
        self._rounds.now(deadline_s)

    def _read(self) -> Read:
        with self._lock:
            tails = dict(self._tails)
        return self._clock.mono_s(), {path: tail.read() for path, tail in tails.items()}
