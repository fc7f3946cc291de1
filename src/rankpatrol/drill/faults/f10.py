"""F10: two ranks use two process groups in opposite order."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import Scene


class OppositeOrder(AtCall):
    """Each waits in the group that the other has not come to."""

    id = "F10"
    verdict = "hang"
    causes = ("opposite_order",)
    expects = Expectation.RECOVERS
    at = "step"
    do = "cross"
    everyone = True

    def prepare(self, scene: Scene) -> dict[str, str]:
        self._others = ((scene.rank + 1) % scene.ranks,)
        return super().prepare(scene)

    def more(self) -> dict[str, object]:
        return {"others": self._others}
