"""What the faults share that strike from inside: a `sitecustomize` of the training's own Python, in the first attempt."""

import json
import os
import shutil
from pathlib import Path

from rankpatrol.drill.faults.port import Fault
from rankpatrol.drill.injected import at_call, chores
from rankpatrol.drill.scene import Scene


class AtCall(Fault):
    """At the n-th call of one place in torch the rank does one chore more, and writes the truth itself: see `injected`."""

    at: str
    do: str
    lasts_s: float = 0.0
    # Every rank does it, not the chosen one alone.
    everyone: bool = False
    # False where the chore is begun before its rank misses it, as in a loader that reads ahead: then the onset shows in the steps.
    timed: bool = True

    def prepare(self, scene: Scene) -> dict[str, str]:
        # The name of this folder stands in the rank's stack: it must not give the answer away.
        site, scratch = scene.folder / "lib", scene.folder / "scratch"
        site.mkdir()
        scratch.mkdir()
        shutil.copyfile(Path(at_call.__file__), site / "sitecustomize.py")
        shutil.copyfile(Path(chores.__file__), site / "_site_chores.py")
        plan = {
            "at": self.at,
            "call": self.call(scene),
            "do": self.do,
            "rank": self.rank(scene),
            "step": self.step(scene),
            "seconds": self.lasts_s,
            "folder": str(scratch),
            "everyone": self.everyone,
            "timed": self.timed,
            "note": str(scene.truth),
            **self.more(),
        }
        before = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": f"{site}{os.pathsep}{before}" if before else str(site), "AT_CALL": json.dumps(plan)}

    def more(self) -> dict[str, object]:
        """What this chore alone needs to know."""
        return {}

    def rank(self, scene: Scene) -> int:
        return scene.rank

    def step(self, scene: Scene) -> int:
        return scene.step

    def call(self, scene: Scene) -> int:
        """Most places are called once a step."""
        return self.step(scene)
