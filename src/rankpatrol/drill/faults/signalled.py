"""What the faults share that strike one rank with a signal."""

import signal
import time

from rankpatrol.drill.faults.port import Fault, Moment
from rankpatrol.drill.ranks import rank_process
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth
from rankpatrol.system.process import send_signal


class RankSignalled(Fault):
    """One signal to exactly the rank's own process, once the step before the drawn one has been told."""

    number: signal.Signals

    def __init__(self) -> None:
        self._struck = False

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._struck or moment.step < scene.step - 1 or (rank := rank_process(moment.keeper_pid, scene.rank)) is None:
            return
        self._struck = True
        write_truth(scene.truth, Truth(rank=scene.rank, step=moment.step + 1, at_unix_s=time.time(), pids=(rank.pid,)))
        send_signal(rank, self.number)
