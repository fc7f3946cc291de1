"""N2: an evaluation takes far longer than a step, in silence and on every rank."""

from rankpatrol.drill.faults.silence import Silence
from rankpatrol.drill.scene import Scene


class SilentEvaluation(Silence):
    """All ranks compute; none waits for another."""

    id = "N2"
    at = "step"
    do = "evaluate"
    everyone = True
    lasts_s = 30.0

    def step(self, scene: Scene) -> int:
        return scene.step

    def call(self, scene: Scene) -> int:
        return scene.step
