"""F21: the newest checkpoint is damaged before a job that hangs is started again."""

from pathlib import Path

from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene


class CheckpointTruncated(SleepsBeforeCollective):
    """Half of the newest file is gone, as after a disk that was full; the one before is whole."""

    id = "F21-truncated"

    def __init__(self) -> None:
        self._spoilt: Path | None = None

    def call(self, scene: Scene) -> int:
        return self.step(scene)

    def step(self, scene: Scene) -> int:
        """Behind the second checkpoint, so that there is an older one."""
        return scene.step + SAVE_EVERY_STEPS

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._spoilt is None and moment.step >= self.step(scene) - 1:
            newest = scene.checkpoints / f"step_{scene.newest_checkpoint_step():06d}.pt"
            self._spoil(newest)
            self._spoilt = newest

    def resume_step(self, scene: Scene) -> int:
        return scene.newest_checkpoint_step() - SAVE_EVERY_STEPS

    def _spoil(self, newest: Path) -> None:
        with newest.open("r+b") as file:
            file.truncate(newest.stat().st_size // 2)


class CheckpointFlipped(CheckpointTruncated):
    """One bit in the middle of the newest file is another."""

    id = "F21-flipped"

    def _spoil(self, newest: Path) -> None:
        with newest.open("r+b") as file:
            file.seek(newest.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
