"""The script ends with an error before it has done anything."""

from rankpatrol.drill.faults.port import Expectation, Fault
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth


class ExitsAtOnce(Fault):
    """The training's script is one line that exits with 3, on every rank and in every attempt."""

    id = "exits-at-once"
    verdict = "crash"
    causes = ("user_exception", "unknown")
    expects = Expectation.LOOPS

    def prepare(self, scene: Scene) -> dict[str, str]:
        scene.script.write_text("raise SystemExit(3)\n")
        write_truth(scene.truth, Truth())
        return {}
