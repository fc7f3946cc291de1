"""F22: the agent is killed in the middle of an incident; a new one takes over, and nothing is done twice or without its bundle."""

import contextlib
import signal
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import ProcessId
from rankpatrol.drill.events import EventFile
from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.scene import Scene
from rankpatrol.system.process import send_signal


class AgentKilled(SleepsBeforeCollective):
    """SIGKILL to the agent as soon as an event of one kind stands in its journal, under a rank that sleeps for ever."""

    after: str
    # A new agent looks afresh, and its patience begins where the rank stood still for it.
    suspect_s = 30.0

    def __init__(self) -> None:
        self._events: EventFile | None = None
        self._struck = False

    def strike(self, scene: Scene, moment: Moment) -> None:  # ruff: ignore[ARG002] - the port's words
        if self._struck:
            return
        self._events = self._events or EventFile(scene.job / "events.jsonl")
        if any(event.kind == self.after for event in self._events.look()) and (agent := recorded_process(scene, "agent.json")) is not None:
            self._struck = True
            with contextlib.suppress(ProcessChanged):
                send_signal(agent, signal.SIGKILL)


def recorded_process(scene: Scene, name: str) -> ProcessId | None:
    """A process that the run directory knows: the agent, or the launcher."""
    try:
        job: dict[str, Any] = msgspec.json.decode((scene.job / "job.json").read_bytes())
        return msgspec.json.decode((Path(job["run_dir"]) / name).read_bytes(), type=ProcessId)
    except (OSError, msgspec.MsgspecError, KeyError):
        return None


class KilledAtSignal(AgentKilled):
    """Before anybody is named."""

    id = "F22-signal"
    after = "signal"


class KilledAtAlert(AgentKilled):
    """Once the suspect is named."""

    id = "F22-alert"
    after = "alert"


class KilledAtVerdict(AgentKilled):
    """Once the verdict is given: while the evidence is being sealed."""

    id = "F22-verdict"
    after = "verdict"


class KilledAtSeal(AgentKilled):
    """Once the bundle is sealed: right before the attempt is ended."""

    id = "F22-sealed"
    after = "bundle_sealed"


class KilledAtAction(AgentKilled):
    """While the attempt is being ended."""

    id = "F22-action"
    after = "action"
