"""F22: the launcher is killed in mid-training, beside a rank of somebody else's job."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankpatrol.core.records import ProcessId
from rankpatrol.drill.family import descendants
from rankpatrol.drill.faults.f22 import recorded_process
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, write_truth
from rankpatrol.system.process import identify, send_signal


class LauncherKilled(Fault):
    """SIGKILL to torchrun: nobody passes a word on to the ranks."""

    id = "F22-launcher"
    verdict = "crash"
    causes = ("launcher_lost_worker",)
    expects = Expectation.LAUNCHER_LOST

    def __init__(self) -> None:
        self._stranger: subprocess.Popen[bytes] | None = None
        self._family: list[ProcessId] = []
        self._struck = Truth()
        self._note = Path()

    def prepare(self, scene: Scene) -> dict[str, str]:
        self._note = scene.truth
        variables = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "another"}
        waiting = "import sys; sys.stdin.read()"
        self._stranger = subprocess.Popen([sys.executable, "-c", waiting], env=variables, stdin=subprocess.PIPE, start_new_session=True)
        return {}

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._struck.at_unix_s is None:
            self._kill(scene, moment)
        else:
            self._note_the_end()

    def _note_the_end(self) -> None:
        if self._struck.until_unix_s is None and not any(identify(process.pid) == process for process in self._family):
            lost = self._stranger is None or self._stranger.poll() is not None
            self._struck = Truth(
                step=self._struck.step,
                at_unix_s=self._struck.at_unix_s,
                until_unix_s=time.time(),
                harmed=("the stranger's rank",) if lost else (),
            )
            write_truth(self._note, self._struck)

    def clear(self) -> None:
        if self._struck.at_unix_s is not None:
            self._note_the_end()  # the run itself may end first
        if self._stranger is not None:
            self._stranger.communicate()

    def _kill(self, scene: Scene, moment: Moment) -> None:
        launcher = recorded_process(scene, "launcher.json") if moment.step >= scene.step else None
        if launcher is None:
            return
        self._family = descendants(launcher.pid)
        self._struck = Truth(step=moment.step, at_unix_s=time.time())
        write_truth(self._note, self._struck)
        send_signal(launcher, signal.SIGKILL)
