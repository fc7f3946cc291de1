"""F8: one rank skips one collective."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene


class SkipsACollective(AtCall):
    """The rank does not enter the barrier after the second checkpoint: it goes on to the next backward pass, where nobody comes."""

    id = "F8"
    verdict = "hang"
    causes: tuple[str, ...] = ("rank_missing_collective", "collective_mismatch_op")
    expects = Expectation.RECOVERS
    at = "barrier"
    do = "skip"
    suspected_only = True

    def call(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 2

    def step(self, scene: Scene) -> int:
        return self.call(scene) * SAVE_EVERY_STEPS
