"""F17: one rank does more in each step than the others, who wait for it."""

import os

from rankpatrol.core.errors import CommandFailed
from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import Scene

# What is usual must be known first: a slow start teaches nothing.
USUAL_STEPS = 90
# The load, by CPUs, from which on whoever computes is late for want of one.
_BUSY = 1.5


class HalfAsSlowAgain(AtCall):
    """It sleeps before each optimizer step, for a hundred steps: a step of 0.2 s takes 0.3 s."""

    id = "F17-50"
    verdict = "slow"
    causes = ("straggler",)
    expects = Expectation.SLOWED_BY_ONE
    at = "step"
    do = "pause"
    lasts_s = 0.3
    times = 100
    steps = 270
    suspect_s = 15.0  # fifty such steps

    def step(self, scene: Scene) -> int:
        return scene.step + USUAL_STEPS

    def more(self) -> dict[str, object]:
        return {"times": self.times}


class ThreeTimesAsSlow(HalfAsSlowAgain):
    """A step takes 0.6 s."""

    id = "F17-200"
    lasts_s = 0.6
    times = 70
    steps = 240
    suspect_s = 30.0


class ComputesMore(ThreeTimesAsSlow):
    """It computes instead of sleeping, and must get a CPU for that: else it is late for another reason."""

    id = "F17-cpu"
    do = "augment"

    def __init__(self) -> None:
        self._may_prove = False

    def strike(self, scene: Scene, moment: Moment) -> None:  # ruff: ignore[ARG002] - the port's words
        if not self._may_prove:
            self._may_prove = cpus_are_free()


def cpus_are_free() -> bool:
    """True; raises CommandFailed where others take this machine's CPUs already, so that nothing could be told from them."""
    load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > _BUSY * cpus:
        why = f"the machine is short of CPUs already (load {load:.0f} on {cpus}): what the drill takes would not show"
        raise CommandFailed(why, help="Run this drill where nothing else runs.")
    return True
