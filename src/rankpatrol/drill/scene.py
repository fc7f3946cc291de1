"""Where one drill run happens: a folder with the training, its data and what is drawn for it."""

import random
import shutil
import sys
from pathlib import Path

from rankpatrol.core.errors import BadInput, CommandFailed
from rankpatrol.core.records import Record
from rankpatrol.system.command import run

BLOCK_SAMPLES = 32
SAVE_EVERY_STEPS = 10


class Scene(Record, frozen=True, kw_only=True):
    """One run's folder, and the rank and step that were drawn. Steps count from 1, as the training prints them."""

    folder: Path
    ranks: int
    rank: int
    step: int
    steps: int = 120
    step_s: float = 0.2

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def job(self) -> Path:
        return self.folder / "job"

    @property
    def output(self) -> Path:
        return self.folder / "output.txt"

    @property
    def script(self) -> Path:
        return self.folder / "train.py"

    @property
    def truth(self) -> Path:
        """Written by the injector alone, and never below the job directory."""
        return self.folder / "truth" / "truth.json"

    @property
    def last_checkpoint(self) -> Path:
        return self.checkpoints / f"step_{self.steps:06d}.pt"

    def newest_checkpoint_step(self) -> int:
        """The step of the newest checkpoint, 0 where there is none. The training renames whole files, so a name is enough."""
        return max((int(path.stem.removeprefix("step_")) for path in self.checkpoints.glob("step_*.pt")), default=0)

    def block(self) -> Path:
        """The shard file that `rank`, and no other, reads for `step`."""
        return self.data / f"block-{(self.step - 1) * self.ranks + self.rank:06d}.bin"

    def training(self) -> list[str]:
        """The command as a user would write it. `--standalone` takes a free port, so that several runs share a machine."""
        return [
            *("torchrun", "--standalone", "--nproc-per-node", str(self.ranks), str(self.script)),
            *("--data", str(self.data), "--checkpoints", str(self.checkpoints), "--resume", "{checkpoint}"),
            *("--steps", str(self.steps), "--save-every", str(SAVE_EVERY_STEPS), "--step-seconds", f"{self.step_s:g}"),
        ]


def draw(folder: Path, *, seed: str, ranks: int, steps: int = 120) -> Scene:
    """The same seed draws the same rank and step; the step lies behind the first checkpoint, so that there is one to resume."""
    dice = random.Random(seed)  # ruff: ignore[S311] - a draw that must be repeatable, not secret
    return Scene(folder=folder, ranks=ranks, rank=dice.randrange(ranks), step=dice.randint(12, 28), steps=steps)


def build(scene: Scene) -> None:
    """Make the folder, the training script and the data."""
    scene.truth.parent.mkdir(parents=True)
    scene.checkpoints.mkdir()
    shutil.copyfile(_example("train.py"), scene.script)
    samples = scene.steps * scene.ranks * BLOCK_SAMPLES
    made = run([sys.executable, str(_example("make_data.py")), str(scene.data), "--samples", str(samples)], deadline_s=60)
    if made.exit_code != 0:
        raise CommandFailed(f"make_data.py failed: {made.stderr.decode(errors='replace').strip()[-300:]}")


def _example(name: str) -> Path:
    """The example that comes with the package, or lies in the checkout it is run from."""
    here = Path(__file__).resolve()
    for place in (here.parent / "examples" / name, here.parents[3] / "examples" / name):
        if place.is_file():
            return place
    raise BadInput(f"the example {name} is not installed", help="Run the drill from a checkout of rankpatrol.")
