"""Some drills prove something only where whoever computes gets a CPU at once; elsewhere they say so."""

import os
import time
from pathlib import Path

from rankpatrol.collect.tempo import pressure_s
from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing

# The steps before the fault in which it is watched: by then the ranks' own start is over, which takes all CPUs there are.
WATCHED_STEPS = 40
# Where the kernel counts no pressure: the load, by CPUs.
_BUSY = 1.5
_HELP = "Run this drill where nothing else runs."


class FreeCpus:
    """Watches for how much of the time some task waited for a CPU (kernel docs accounting/psi); `most`: the share that is still free."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._began: tuple[float, float] | None = None
        self._seen = False

    def watch(self, step: int, onset_step: int) -> None:
        """Call it often. Raises CommandFailed shortly before the onset, where the machine is short of CPUs."""
        if self._seen or step < onset_step - WATCHED_STEPS:
            return
        waited_s = pressure_s(Path("/proc/pressure/cpu"))
        if isinstance(waited_s, Missing):
            self._seen = True
            self._check_load()
        elif self._began is None:
            self._began = time.monotonic(), waited_s
        elif step >= onset_step - 1:
            self._seen = True
            share = (waited_s - self._began[1]) / max(time.monotonic() - self._began[0], 1e-3)
            if share > self._most:
                why = f"the machine is short of CPUs: for {share:.0%} of the time before the fault something waited for one"
                raise CommandFailed(why, help=_HELP)

    @staticmethod
    def _check_load() -> None:
        load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > _BUSY * cpus:
            raise CommandFailed(f"the machine is short of CPUs already (load {load:.0f} on {cpus})", help=_HELP)
