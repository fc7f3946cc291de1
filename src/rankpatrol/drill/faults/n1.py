"""N1: the first step takes far longer than the rest."""

from rankpatrol.drill.faults.silence import Silence
from rankpatrol.drill.scene import Scene


class SlowFirstStep(Silence):
    """The drawn rank tunes for its first step by real arithmetic, while the others wait in their first backward pass."""

    id = "N1"
    at = "forward"
    do = "tune"

    def rank(self, scene: Scene) -> int:
        return scene.rank

    def step(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 1
