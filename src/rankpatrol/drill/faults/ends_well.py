"""No fault: a healthy training that must be left alone."""

from rankpatrol.drill.faults.port import Expectation, Fault
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth


class EndsWell(Fault):
    """Nothing happens. Only rank 0 logs, as the training always does."""

    id = "ends-well"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.ENDS_WELL

    def prepare(self, scene: Scene) -> dict[str, str]:
        write_truth(scene.truth, Truth())
        return {}
