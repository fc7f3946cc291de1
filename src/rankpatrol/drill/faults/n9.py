"""N9: the wall clock of the agent, and of nobody else, is set by an hour in the middle of a silence, or of a hang."""

import struct
import time
from pathlib import Path

import msgspec

from rankpatrol.core.errors import CommandFailed
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.n4 import BuildsVocabulary
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.injected import at_call
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, read_truth
from rankpatrol.system.command import run

_HOUR_S = 3600
# Between the first signal and the alert of a rank that stands still; within every silence.
_AFTER_S = 3.0
_AGENT = "rankpatrol.agent"


class ClockSet(AtCall):
    """A library in front of the C library's: the agent asks for the time, and gets one that is `by_s` off once the moment has come."""

    by_s: int

    def __init__(self) -> None:
        self._shift = Path()
        self._set_at_unix_s: float | None = None

    def prepare(self, scene: Scene) -> dict[str, str]:
        variables = super().prepare(scene)
        source, library = Path(at_call.__file__).with_name("agent_clock.c"), scene.folder / "lib" / "clock.so"
        built = run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], deadline_s=60)
        if built.exit_code != 0:
            raise CommandFailed(f"cc cannot build {source.name}: {built.stderr.decode(errors='replace').strip()[-300:]}")
        self._shift = scene.folder / "shift"
        self._shift.write_bytes(struct.pack("q", 0))
        return {**variables, "LD_PRELOAD": str(library), "WALL_CLOCK_OF": _AGENT, "WALL_CLOCK_SHIFT": str(self._shift)}

    def strike(self, scene: Scene, moment: Moment) -> None:  # ruff: ignore[ARG002] - the port's words
        told = read_truth(scene.truth) if self._set_at_unix_s is None else None
        if isinstance(told, Truth) and told.at_unix_s is not None and time.time() - told.at_unix_s >= _AFTER_S:
            self._set_at_unix_s = time.time()
            with self._shift.open("r+b") as shift:
                shift.write(struct.pack("q", self.by_s))

    def by_our_clock(self, event: Event) -> Event:
        """What was told after the clock was set is an hour off."""
        if self._set_at_unix_s is None or abs(event.at_unix_s - self._set_at_unix_s) < _HOUR_S / 2:
            return event
        onset_unix_s = None if event.onset_unix_s is None else event.onset_unix_s - self.by_s
        return msgspec.structs.replace(event, at_unix_s=event.at_unix_s - self.by_s, onset_unix_s=onset_unix_s)


class AheadInASilence(ClockSet, BuildsVocabulary):
    """Rank 0 works while the others wait, and the clock goes an hour ahead."""

    id = "N9-ahead"
    by_s = _HOUR_S


class BackInASilence(AheadInASilence):
    """The same, and the clock goes an hour back."""

    id = "N9-back"
    by_s = -_HOUR_S


class AheadInAHang(ClockSet, SleepsBeforeCollective):
    """A rank sleeps for ever: caught in time all the same."""

    id = "N9-ahead-F5"
    by_s = _HOUR_S


class BackInAHang(AheadInAHang):
    """The same, and the clock goes an hour back."""

    id = "N9-back-F5"
    by_s = -_HOUR_S
