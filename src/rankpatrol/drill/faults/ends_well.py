"""No fault: a healthy training that must be left alone."""

from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth


class EndsWell:
    """Nothing happens."""

    id = "ends-well"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.ENDS_WELL

    def prepare(self, scene: Scene) -> dict[str, str]:
        write_truth(scene.truth, Truth())
        return {}

    def strike(self, scene: Scene, moment: Moment) -> None:
        """Nothing is done."""

    def heal(self, scene: Scene) -> None:
        """Nothing was broken."""

    def clear(self) -> None:
        """Nothing is held."""
