"""F21: the newest checkpoint is damaged before a job that hangs is started again, or a rank is killed while it saves."""

import shutil
from pathlib import Path

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene

# The latest strike is at step 38: enough steps follow to save twice more.
_STEPS = 60


class CheckpointTruncated(SleepsBeforeCollective):
    """Half of the newest file is gone, as after a disk that was full; the one before is whole."""

    id = "F21-truncated"
    steps = _STEPS

    def __init__(self) -> None:
        self._spoilt: Path | None = None

    def call(self, scene: Scene) -> int:
        return self.step(scene)

    def step(self, scene: Scene) -> int:
        """Behind the second checkpoint, so that there is an older one; and not so close behind a save that it may still go on."""
        step = scene.step + SAVE_EVERY_STEPS
        return step if step % SAVE_EVERY_STEPS > 1 else step + 2

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


class ShardMissing(CheckpointTruncated):
    """Beside the newest file lies a newer checkpoint of one file a rank, and one rank's is not there."""

    id = "F21-missing"

    def resume_step(self, scene: Scene) -> int:
        return scene.newest_checkpoint_step()

    def _spoil(self, newest: Path) -> None:
        shards = newest.with_name(f"{newest.stem[:-1]}1")  # step_000021, one step on
        shards.mkdir()
        for rank in (0, 1, 3):
            shutil.copyfile(newest, shards / f"model_world_size_4_rank_{rank}.pt")


class StaleLatest(CheckpointTruncated):
    """`latest` names the checkpoint before the newest, as where a job died between the two writes."""

    id = "F21-latest"

    def resume_step(self, scene: Scene) -> int:
        return scene.newest_checkpoint_step()

    def _spoil(self, newest: Path) -> None:
        newest.with_name("latest").write_text(min(newest.parent.glob("step_*.pt")).name)


class KilledWhileSaving(AtCall):
    """The rank that saves is killed when half of the file is written, under the name that it will have."""

    id = "F21-killed"
    verdict = "crash"
    causes = ("sigkill", "host_oom_kill")
    expects = Expectation.CRASHES
    steps = _STEPS
    at = "save"
    do = "die_in_half"

    def __init__(self) -> None:
        self._files: dict[str, str] = {}

    def rank(self, scene: Scene) -> int:  # ruff: ignore[ARG002] - the port's words
        return 0

    def step(self, scene: Scene) -> int:
        return self.call(scene) * SAVE_EVERY_STEPS

    def call(self, scene: Scene) -> int:
        """Behind two whole ones."""
        return scene.step // SAVE_EVERY_STEPS + 2

    def prepare(self, scene: Scene) -> dict[str, str]:
        before, now = (scene.checkpoints / f"step_{self.step(scene) - back:06d}.pt" for back in (SAVE_EVERY_STEPS, 0))
        self._files = {"before": str(before), "now": str(now)}
        return super().prepare(scene)

    def more(self) -> dict[str, object]:
        return dict(self._files)

    def resume_step(self, scene: Scene) -> int:
        return self.step(scene) - SAVE_EVERY_STEPS
