"""N14: a preemption or a time limit: the scheduler asks the launcher to end."""

import os
import signal
import time

from rankpatrol.drill.faults.ctrl_c import CtrlC
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth


class Preempted(CtrlC):
    """SIGTERM to the run, as a scheduler sends it before SIGKILL."""

    id = "N14-term"

    def strike(self, scene: Scene, moment: Moment) -> None:
        if not self._struck and moment.step >= scene.step:
            self._struck = True
            write_truth(scene.truth, Truth(step=moment.step, at_unix_s=time.time()))
            os.kill(moment.keeper_pid, signal.SIGTERM)  # our own child, not reaped yet; it passes the signal on
