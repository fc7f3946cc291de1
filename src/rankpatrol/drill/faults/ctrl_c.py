"""The user presses Ctrl-C in mid-training."""

import os
import signal
import time

from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth

_AFTER_STEP = 5


class CtrlC(Fault):
    """One SIGINT to the leader of the run's process group, after step 5."""

    id = "ctrl-c"
    verdict = "shutdown"
    causes = ("preempted_or_cancelled",)
    expects = Expectation.STOPS

    def __init__(self) -> None:
        self._struck = False

    def strike(self, scene: Scene, moment: Moment) -> None:
        if not self._struck and moment.step >= _AFTER_STEP:
            self._struck = True
            write_truth(scene.truth, Truth(step=moment.step, at_unix_s=time.time()))
            os.kill(moment.keeper_pid, signal.SIGINT)  # our own child, not reaped yet; it passes the signal on
