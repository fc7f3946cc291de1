"""F19: other programs of the machine take the CPUs."""

import contextlib
import os
import signal
import subprocess
import sys
import time

from rankpatrol.drill.faults.f17 import USUAL_STEPS
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth

_LASTS_S = 45.0
_EACH_CPU = 4
# They end by themselves, should nobody be left to end them.
_BURNS = "import time; until = time.monotonic() + %s\nwhile time.monotonic() < until: sum(range(10000))"


class CpusTaken(Fault):
    """Some programs for each CPU, which only compute."""

    id = "F19"
    verdict = "slow"
    causes = ("host_contention",)
    expects = Expectation.SLOWED
    steps = 330
    suspect_s = 120.0

    def __init__(self) -> None:
        self._burners: list[subprocess.Popen[bytes]] = []
        self._began_s: float | None = None
        self._began_unix_s = 0.0

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._began_s is None and moment.step >= scene.step + USUAL_STEPS:
            self._began_s, self._began_unix_s = time.monotonic(), time.time()
            write_truth(scene.truth, Truth(step=moment.step + 1, at_unix_s=self._began_unix_s))
            code = [sys.executable, "-c", _BURNS % _LASTS_S]
            self._burners = [subprocess.Popen(code) for _ in range(_EACH_CPU * len(os.sched_getaffinity(0)))]
        elif self._burners and self._began_s is not None and time.monotonic() - self._began_s >= _LASTS_S:
            self.clear()
            write_truth(scene.truth, Truth(step=moment.step, at_unix_s=self._began_unix_s, until_unix_s=time.time()))

    def clear(self) -> None:
        for burner in self._burners:
            with contextlib.suppress(ProcessLookupError):
                burner.send_signal(signal.SIGKILL)
            burner.wait()
        self._burners = []
