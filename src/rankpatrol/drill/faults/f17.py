"""F17: one rank does more in each step than the others, who wait for it."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.free_cpus import FreeCpus
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import Scene

# What is usual must be known first: a slow start teaches nothing.
USUAL_STEPS = 90


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
        self._cpus = FreeCpus(most=0.5)

    def strike(self, scene: Scene, moment: Moment) -> None:
        self._cpus.watch(moment.step, self.step(scene))
