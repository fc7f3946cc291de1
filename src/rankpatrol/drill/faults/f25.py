"""F25: every attempt fails at the same step, of the same bad block."""

from rankpatrol.drill.faults.port import Expectation, Fault
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth


class FailsEachTime(Fault):
    """The block of the drawn rank and step has lost its last bytes, and nobody mends it: each attempt raises there."""

    id = "F25"
    verdict = "stop"
    causes = ("repeated_failure",)
    expects = Expectation.LOOPS

    def prepare(self, scene: Scene) -> dict[str, str]:
        block = scene.block()
        block.write_bytes(block.read_bytes()[:-8])
        write_truth(scene.truth, Truth(rank=scene.rank, step=scene.step))
        return {}
