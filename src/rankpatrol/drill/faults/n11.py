"""N11: the job is suspended as a whole, by a scheduler or a user."""

import signal
import time

from rankpatrol.core.records import ProcessId
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.ranks import rank_process
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth
from rankpatrol.system.process import send_signal

_SUSPENDED_S = 40.0


class Suspended(Fault):
    """SIGSTOP to every rank; SIGCONT after twice the patience."""

    id = "N11-suspended"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT

    def __init__(self) -> None:
        self._ranks: list[ProcessId] = []
        self._truth = Truth()
        self._began_s = 0.0

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._truth.at_unix_s is None and moment.step >= scene.step:
            found = [rank_process(moment.keeper_pid, rank) for rank in range(scene.ranks)]
            self._ranks = [rank for rank in found if rank is not None]
            self._signal(signal.SIGSTOP)
            self._began_s = time.monotonic()
            self._truth = Truth(step=moment.step, at_unix_s=time.time())
            write_truth(scene.truth, self._truth)
        elif self._ranks and time.monotonic() - self._began_s >= _SUSPENDED_S:
            self._signal(signal.SIGCONT)
            self._ranks = []
            write_truth(scene.truth, Truth(step=self._truth.step, at_unix_s=self._truth.at_unix_s, until_unix_s=time.time()))

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            send_signal(rank, number)
