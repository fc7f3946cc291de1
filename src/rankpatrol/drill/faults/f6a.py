"""F6a: the loader processes of one rank are stopped."""

import signal

from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.ranks import loader_processes
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth
from rankpatrol.system.process import send_signal


class LoaderStopped(Fault):
    """SIGSTOP to every loader process of the rank: it goes on for the samples that were read ahead, then waits for the next."""

    id = "F6a"
    verdict = "hang"
    causes = ("data_loader_worker_stuck",)
    expects = Expectation.RECOVERS

    def __init__(self) -> None:
        self._stopped: tuple[int, ...] = ()
        self._noted_step = 0
        self._over = False

    def strike(self, scene: Scene, moment: Moment) -> None:
        if not self._stopped and moment.step >= scene.step - 1:
            loaders = loader_processes(moment.keeper_pid, scene.rank)
            for loader in loaders:
                send_signal(loader, signal.SIGSTOP)
            self._stopped = tuple(loader.pid for loader in loaders)
        # Which step the rank misses shows only when it does not come.
        if self._stopped and not self._over and moment.step != self._noted_step:
            self._noted_step = moment.step
            write_truth(scene.truth, Truth(rank=scene.rank, step=moment.step + 1, pids=self._stopped))

    def heal(self, scene: Scene) -> None:  # ruff: ignore[ARG002] - the port's words
        """The next attempt has loader processes of its own; its steps are not ours to note."""
        self._over = True
