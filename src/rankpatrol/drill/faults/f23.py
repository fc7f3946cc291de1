"""F23: a rank's shim is killed, and with it the rank; a loader process that is stuck lives on, beside a stranger's process."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import ProcessId
from rankpatrol.drill.faults.f6b import LoaderBlockedInRead
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.ranks import loader_processes
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, read_truth, write_truth
from rankpatrol.system.process import identify, send_signal

# Stands for a CUDA context: opened in each rank before its loader processes are forked, and closed with its last descriptor.
_OPENS_DEVICE = """import os
if "RANK" in os.environ:
    os.open({device!r}, os.O_RDWR)
"""
# Holds the same device, and writes down every signal that can be heard.
_STRANGER = """import os, signal, sys
held = os.open(sys.argv[1], os.O_RDWR)
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, frame: print(number, flush=True))
sys.stdin.read()
"""


class OrphansBesideAStranger(LoaderBlockedInRead):
    """SIGKILL to the shim of the drawn rank once a loader process of it is stuck: nobody is left who would sweep."""

    id = "F23"
    expects = Expectation.RELEASES

    def __init__(self) -> None:
        super().__init__()
        self._stranger: subprocess.Popen[str] | None = None
        self._orphan: ProcessId | None = None
        self._note = Path()

    def prepare(self, scene: Scene) -> dict[str, str]:
        site, device = scene.folder / "lib", scene.folder / "dev" / "nvidia0"
        site.mkdir()
        device.parent.mkdir()
        device.touch()
        self._note = scene.truth
        (site / "sitecustomize.py").write_text(_OPENS_DEVICE.format(device=str(device)))
        self._stranger = subprocess.Popen(
            [sys.executable, "-S", "-c", _STRANGER, str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**super().prepare(scene), "PYTHONPATH": os.pathsep.join(path), "RANKPATROL_DEVICES": f"{device.parent}/nvidia*"}

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._orphan is None:
            super().strike(scene, moment)
            self._kill_shim(scene, moment)
        else:
            self._note_the_end()

    def clear(self) -> None:
        super().clear()
        if self._stranger is None:
            return
        survived = self._stranger.poll() is None
        heard, _ = self._stranger.communicate()
        truth = read_truth(self._note)
        if isinstance(truth, Truth) and (heard or not survived):
            what = f"the stranger's process (heard signals: {' '.join(heard.split()) or 'SIGKILL'})"
            write_truth(self._note, msgspec.structs.replace(truth, harmed=(what,)))

    def _kill_shim(self, scene: Scene, moment: Moment) -> None:
        truth = read_truth(scene.truth)
        shim = _shim(scene) if isinstance(truth, Truth) else None
        if shim is None or not isinstance(truth, Truth):
            return
        self._orphan = identify(truth.pids[0])
        family = (process.pid for process in loader_processes(moment.keeper_pid, scene.rank))
        pids = tuple(dict.fromkeys((*truth.pids, *family)))
        write_truth(scene.truth, msgspec.structs.replace(truth, at_unix_s=time.time(), pids=pids))
        with contextlib.suppress(ProcessChanged):
            send_signal(shim, signal.SIGKILL)

    def _note_the_end(self) -> None:
        """Seen while the run goes on: when it is over, its keeper takes all that is left."""
        truth = read_truth(self._note)
        if isinstance(truth, Truth) and truth.until_unix_s is None and (self._orphan is None or identify(self._orphan.pid) != self._orphan):
            write_truth(self._note, msgspec.structs.replace(truth, until_unix_s=time.time()))


def _shim(scene: Scene) -> ProcessId | None:
    """The struck rank's shim, from the job's own events."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, KeyError):
        for line in (scene.job / "events.jsonl").read_bytes().splitlines():
            event: dict[str, Any] = msgspec.json.decode(line)
            if event["kind"] == "attempt_started":
                return identify(event["ranks"][str(scene.rank)]["shim_pid"])
    return None
