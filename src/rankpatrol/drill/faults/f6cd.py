"""F6c, F6d: a loader process that waits for a lock it inherited, and one that never stops computing."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.scene import Scene


class _InALoader(AtCall):
    """One loader process of the rank; it reads ahead, so the onset shows in the training's steps."""

    verdict = "hang"
    expects = Expectation.RECOVERS
    at = "fetch"
    timed = False

    def call(self, scene: Scene) -> int:
        """Two loader processes take turns: each fetches every other step, and the first one to come this far is struck."""
        return (scene.step + 1) // 2

    def step(self, scene: Scene) -> int:
        return (scene.step + 1) // 2 * 2 - 1


class LoaderInheritsALock(_InALoader):
    """The lock was taken before the fork, and its owner does not exist in the child."""

    id = "F6c"
    causes = ("data_loader_fork_lock", "data_loader_worker_stuck")
    do = "take_the_lock"


class LoaderSpins(_InALoader):
    """An endless loop in the dataset."""

    id = "F6d"
    causes = ("data_loader_worker_stuck",)
    suspect_s = 30.0
    do = "count"
