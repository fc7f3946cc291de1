"""Has anybody paused actions? Read each second, the user's switch on a thread of its own: homes lie on networks that may hang."""

import time

from rankpatrol.launch.pauses import Pause, job_switch, machine_pause, read_pause
from rankpatrol.launch.rundir import RunDir
from rankpatrol.system.background import Rounds

_EVERY_S = 1.0
_NOT_READ = Pause(
    since_unix_s=0.0,
    by="rankpatrol",
    why="the user's state directory, where `rankpatrol pause` leaves its word, does not answer",
    scope="machine",
)


class Switches:
    """The two switches of one job. What was last read of a folder that does not answer stands; never read, it counts as paused."""

    def __init__(self, run_dir: RunDir) -> None:
        self._job = job_switch(run_dir)
        unread: Pause | None = _NOT_READ
        self._began_s = time.monotonic()
        self._machine = Rounds(machine_pause, unread, every_s=_EVERY_S, name="pauses")

    def latest(self) -> Pause | None:
        """The pause as known now, without waiting; the first second, in which nothing was read yet, is no pause to tell of."""
        seen = self._machine.latest()
        if seen is _NOT_READ and time.monotonic() - self._began_s < _EVERY_S:
            seen = None
        return read_pause(self._job, "job") or seen

    def now(self, deadline_s: float) -> Pause | None:
        """The pause at this moment, for whoever is about to act."""
        return read_pause(self._job, "job") or self._machine.now(deadline_s)
