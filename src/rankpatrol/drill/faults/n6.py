"""N6: the log says little or nothing of a training that is well."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.ends_well import EndsWell
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth

_LONG_STEPS = 240  # at 0.2 s each more than twice the drill's patience


class OneRankLogs(EndsWell):
    """Only rank 0 logs, as the training always does."""

    id = "N6-rank0"
    steps = _LONG_STEPS


class LinesByTheBlock(AtCall):
    """Every line waits in the rank until its buffer is full or its end has come, in every attempt."""

    id = "N6-block"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.ENDS_WELL
    steps = _LONG_STEPS
    at = "print"
    do = "buffer_lines"

    def prepare(self, scene: Scene) -> dict[str, str]:
        write_truth(scene.truth, Truth())
        return super().prepare(scene)


class NoLines(LinesByTheBlock):
    """No rank prints a line."""

    id = "N6-none"
    do = "drop_lines"
