"""N16: storage hiccups: one loader process is blocked for a minute, then goes on. Patience is the one that is shipped."""

import os
import time
from pathlib import Path

from rankpatrol.drill.faults.f6b import LoaderBlockedInRead
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, read_truth, write_truth

_HICCUP_S = 60.0


class StorageHiccups(LoaderBlockedInRead):
    """The second half of the block comes a minute late."""

    id = "N16"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT
    patience = "180s"

    def __init__(self) -> None:
        super().__init__()
        self._began_s: float | None = None
        self._rest = b""

    def strike(self, scene: Scene, moment: Moment) -> None:
        super().strike(scene, moment)
        if self._struck and self._began_s is None and moment.step >= scene.step - 1:
            self._began_s = time.monotonic()
            self._note(scene)
        if self._began_s is not None and self._held_fd is not None and time.monotonic() - self._began_s >= _HICCUP_S:
            os.write(self._held_fd, self._rest)
            self.clear()
            self._note(scene, until_unix_s=time.time())

    def _feed(self, block: Path, data: bytes) -> None:
        self._rest = data[len(data) // 2 :]
        super()._feed(block, data)

    def _note(self, scene: Scene, until_unix_s: float | None = None) -> None:
        told = read_truth(scene.truth)
        pids = told.pids if isinstance(told, Truth) else ()
        began = told.at_unix_s if isinstance(told, Truth) and told.at_unix_s else time.time()
        write_truth(scene.truth, Truth(rank=scene.rank, step=scene.step, at_unix_s=began, until_unix_s=until_unix_s, pids=pids))
