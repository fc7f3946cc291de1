"""Keeps the latest reading of a job, for whoever serves or writes it."""

import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.agent.goodput_so_far import GoodputSoFar
from rankpatrol.agent.teller import Teller
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.metrics.address import Address
from rankpatrol.metrics.records import JobNow, Reading, Tally
from rankpatrol.metrics.tally import added, total
from rankpatrol.system.clock import Clock

# A folder that does not take the last word by then is left behind.
_LAST_WORD_S = 2.0
_NOT_INSTALLED = (
    "metrics are not served: prometheus-client is not installed. The patrol goes on. pip install '.[metrics]' in rankpatrol's clone"
)


class Post:
    """Keeps the latest reading; a thread that serves or writes it takes it whole."""

    def __init__(self, spec: JobSpec, teller: Teller, clock: Clock) -> None:
        self._clock = clock
        self._tally = Tally()
        self._goodput = GoodputSoFar()
        self._latest: tuple[Reading, ...] = ()
        self._file: Any = None
        teller.journal.listeners.append(self._hear)
        try:
            self._open(spec, teller)
        except ImportError:
            teller.voice.say(_NOT_INSTALLED, "alert")

    def latest(self) -> tuple[Reading, ...]:
        """The reading of the last round, or nothing before the first."""
        return self._latest

    def adopt(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._tally = total(_heard_by(self._goodput, events))

    def publish(self, state: bytes) -> None:
        # What cannot be read as a state leaves the last reading, whose age tells.
        with contextlib.suppress(msgspec.MsgspecError):
            now = msgspec.json.decode(state, type=JobNow)
            self._latest = (Reading(now=now, tally=self._tally, goodput=self._goodput.at(self._clock.mono_s(), now.at_unix_s)),)

    def farewell(self) -> None:
        if self._file is not None:
            self._file.last_word(_LAST_WORD_S)

    def leave(self) -> None:
        if self._file is not None:
            self._file.withdraw(_LAST_WORD_S)

    def _hear(self, event: Mapping[str, Any]) -> None:
        self._tally = added(self._tally, event)
        self._goodput.hear(event)

    def _open(self, spec: JobSpec, teller: Teller) -> None:
        if spec.metrics:
            serving = importlib.import_module("rankpatrol.metrics.serving")
            serving.MetricsServer(Address.parse(spec.metrics), self.latest, teller.voice.say)
        if spec.metrics_textfile:
            textfile = importlib.import_module("rankpatrol.metrics.textfile")
            self._file = textfile.MetricsFile(Path(spec.metrics_textfile), spec.job, self.latest, teller.voice.say)


def reading_of(state: bytes, events: Iterable[Mapping[str, Any]]) -> Reading:
    """A reading of a job directory, as its files tell it. Raises msgspec.ValidationError."""
    now = msgspec.json.decode(state, type=JobNow)
    goodput = GoodputSoFar()
    tally = total(_heard_by(goodput, events))
    return Reading(now=now, tally=tally, goodput=goodput.at(0.0, now.at_unix_s))


def _heard_by(goodput: GoodputSoFar, events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        goodput.hear(event)
        yield event
