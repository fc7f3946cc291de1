"""N3: a checkpoint takes far longer than a step."""

from rankpatrol.drill.faults.silence import Silence
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene


class SlowCheckpoint(Silence):
    """Rank 0 writes a large file inside `torch.save`, while the others wait in the barrier behind it."""

    id = "N3"
    at = "save"
    do = "write_large"

    def step(self, scene: Scene) -> int:
        return self.call(scene) * SAVE_EVERY_STEPS

    def call(self, scene: Scene) -> int:
        return scene.step // SAVE_EVERY_STEPS
