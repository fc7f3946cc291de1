"""F26: the training is over, and one rank does not go."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import Scene


class NeverGoes(AtCall):
    """After its groups are taken down the rank sleeps for ever; the others end well."""

    id = "F26"
    verdict = "zombie_job"
    causes = ("teardown_deadlock",)
    expects = Expectation.NOT_AGAIN
    suspect_s = 30.0
    steps = 40  # enough to learn what is usual; the fault comes behind the last
    at = "end"
    do = "rest"

    def step(self, scene: Scene) -> int:
        return scene.steps

    def call(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 1
