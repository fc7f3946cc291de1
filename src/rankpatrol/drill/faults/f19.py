"""F19: other programs of the machine take the CPUs that the ranks need."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.f17 import USUAL_STEPS
from rankpatrol.drill.faults.free_cpus import FreeCpus
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth

_LASTS_S = 45.0
_EACH_CPU = 6
# They end by themselves, should nobody be left to end them.
_BURNS = "import time; until = time.monotonic() + %s\nwhile time.monotonic() < until: sum(range(10000))"


class CpusTaken(AtCall):
    """Some programs for each CPU, which only compute. The ranks compute in each step as well: one that sleeps needs no CPU."""

    id = "F19"
    verdict = "slow"
    causes = ("host_contention",)
    expects = Expectation.SLOWED
    at = "step"
    do = "transform"
    everyone = True
    steps = 260
    suspect_s = 120.0

    def __init__(self) -> None:
        self._burners: list[subprocess.Popen[bytes]] = []
        self._began_s: float | None = None
        self._began_unix_s = 0.0
        # The ranks themselves wait for each other's CPU in each step.
        self._cpus = FreeCpus(most=0.75)

    def step(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 1

    def more(self) -> dict[str, object]:
        return {"times": self.steps, "cpu_seconds": 0.05}

    def prepare(self, scene: Scene) -> dict[str, str]:
        """What the ranks compute is no fault: it is noted elsewhere."""
        variables = super().prepare(scene)
        plan = {**json.loads(variables["AT_CALL"]), "note": str(scene.folder / "scratch" / "note.json")}
        return {**variables, "AT_CALL": json.dumps(plan)}

    def strike(self, scene: Scene, moment: Moment) -> None:
        self._cpus.watch(moment.step, scene.step + USUAL_STEPS)
        if self._began_s is None and moment.step >= scene.step + USUAL_STEPS:
            self._began_s, self._began_unix_s = time.monotonic(), time.time()
            write_truth(scene.truth, Truth(step=moment.step + 1, at_unix_s=self._began_unix_s))
            code = [sys.executable, "-c", _BURNS % _LASTS_S]
            # Sessions of their own, as the ranks have: the kernel shares CPUs out by session first (autogroups, sched(7)).
            burners = range(_EACH_CPU * len(os.sched_getaffinity(0)))
            self._burners = [subprocess.Popen(code, start_new_session=True) for _ in burners]
        elif self._burners and self._began_s is not None and time.monotonic() - self._began_s >= _LASTS_S:
            self.clear()
            write_truth(scene.truth, Truth(step=moment.step, at_unix_s=self._began_unix_s, until_unix_s=time.time()))

    def clear(self) -> None:
        for burner in self._burners:
            with contextlib.suppress(ProcessLookupError):
                burner.send_signal(signal.SIGKILL)
            burner.wait()
        self._burners = []
