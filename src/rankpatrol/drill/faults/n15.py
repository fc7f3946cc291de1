"""N15: two jobs on one node, of two users where we may become one: one of them hangs, and the other is none of its business."""

from pathlib import Path

import msgspec

from rankpatrol.drill.family import descendants
from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.neighbour import Neighbour
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, read_truth, write_truth


class TwoJobs(SleepsBeforeCollective):
    """Each under a `rankpatrol run` of its own user."""

    id = "N15"

    def __init__(self) -> None:
        self._neighbour = Neighbour()
        self._above = 0
        self._scene: Scene | None = None

    def prepare(self, scene: Scene) -> dict[str, str]:
        self._scene = scene
        self._above = self._neighbour.start(patrolled=not self.attached)
        return super().prepare(scene)

    def clear(self) -> None:
        if (scene := self._scene) is None:
            return
        self._scene = None
        harm = self._neighbour.end(kept_at=scene.folder)
        told = read_truth(scene.truth)
        if harm and isinstance(told, Truth):
            write_truth(scene.truth, msgspec.structs.replace(told, harmed=harm))


class TwoJobsUnderOneWatch(TwoJobs):
    """Both started by their users alone, and watched by one `rankpatrol watch --all`, which finds them by itself."""

    id = "N15-all"
    attached = True

    def watch_words(self, pid: int) -> tuple[str, ...]:  # ruff: ignore[ARG002] - the port's words
        return ("--all",)

    def strike(self, scene: Scene, moment: Moment) -> None:
        """Find out which of the watch's folders is of which job: by the processes that it tells."""
        for events in scene.folder.glob("rankpatrol-runs/*/events.jsonl"):
            if not scene.job.exists() and _is_of(events, moment.keeper_pid):
                scene.job.symlink_to(events.parent)
            elif _is_of(events, self._above):
                self._neighbour.job = events.parent


def _is_of(events: Path, above: int) -> bool:
    family = {process.pid for process in descendants(above)}
    for line in events.read_bytes().splitlines():
        told = msgspec.json.decode(line)
        if told["kind"] == "attempt_started":
            return any(place["pid"] in family for place in told["ranks"].values())
    return False
