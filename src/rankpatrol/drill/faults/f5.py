"""F5: one rank sleeps for ever before a collective."""

import os
import shutil
from pathlib import Path

from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.injected import before_step
from rankpatrol.drill.scene import Scene


class SleepsBeforeCollective:
    """A `sitecustomize` of the training's own Python puts the rank to sleep in the hooks of `Optimizer.step`, in the first attempt."""

    id = "F5"
    verdict = "hang"
    causes = ("rank_blocked",)
    expects = Expectation.RECOVERS

    def prepare(self, scene: Scene) -> dict[str, str]:
        # The name of this folder stands in the rank's stack: it must not give the answer away.
        site = scene.folder / "lib"
        site.mkdir()
        shutil.copyfile(Path(before_step.__file__), site / "sitecustomize.py")
        before = os.environ.get("PYTHONPATH", "")
        return {
            "PYTHONPATH": f"{site}{os.pathsep}{before}" if before else str(site),
            "BEFORE_STEP_RANK": str(scene.rank),
            "BEFORE_STEP_STEP": str(scene.step),
            "BEFORE_STEP_NOTE": str(scene.truth),
        }

    def strike(self, scene: Scene, moment: Moment) -> None:
        """The rank strikes itself, and writes the truth."""

    def heal(self, scene: Scene) -> None:
        """A later attempt is left alone: the truth file is there."""

    def clear(self) -> None:
        """Nothing is held."""
