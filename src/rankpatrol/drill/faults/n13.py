"""N13: the ranks finish at different times."""

from rankpatrol.drill.faults.silence import Silence
from rankpatrol.drill.scene import Scene


class LateLeaver(Silence):
    """Rank 0 writes one last large file after the others have left: no process group is there any more."""

    id = "N13"
    at = "end"
    do = "write_large"
    lasts_s = 30.0

    def step(self, scene: Scene) -> int:
        return scene.steps
