"""Keeps an eye on how fast the job goes: feeds the pace, and has told what it finds. Nothing is ever done about it."""

import random

import msgspec

from rankpatrol.agent.asides import Asides
from rankpatrol.agent.bindings import misbound
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.roster import Attempt
from rankpatrol.analysis.pace.pace import step
from rankpatrol.analysis.pace.records import (
    Beat,
    Began,
    Eased,
    Interrupted,
    Moment,
    PaceEvent,
    PaceFinding,
    PacePolicy,
    PaceState,
    RankBeat,
    Refuted,
    Slowed,
)
from rankpatrol.analysis.pace.witness import driver_errors, witness
from rankpatrol.analysis.several import degraded_link
from rankpatrol.analysis.waits import classify
from rankpatrol.collect.gpus import sample_gpus
from rankpatrol.collect.tempo import Running, busy_cpu_s, doing_of, pressures_s, running_of
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import ProcessSample, Snapshot
from rankpatrol.evidence.host import kernel_log
from rankpatrol.formats.xid import xids
from rankpatrol.system.clock import Clock

_TRAINS = "train_step"
_TICKS = 100.0
# Rounds and steps must not march in step, or each moment would be the same part of a step.
_JITTER_S = 0.03
# So many looks at stacks must bear out that whoever is named does not wait for the others itself.
_LOOKS, _LOOK_EVERY_S = 3, 0.07
_LINK_LOOKS = 8
# What the driver reported longer ago has little to do with it.
_ERRORS_S = 600.0


class PaceWatch:
    """The pace of the current attempt. One call a round, and while steps are odd one small look between rounds."""

    def __init__(self, eyes: Eyes, asides: Asides, clock: Clock) -> None:
        self._eyes, self._asides, self._clock = eyes, asides, clock
        self._policy, self._state = PacePolicy(), PaceState()
        self._dice = random.Random()  # ruff: ignore[S311] - jitter, no secret

    def begin(self) -> None:
        """A new attempt."""
        self._take(Began(at_s=self._clock.mono_s()))

    def round(self, attempt: Attempt, *, odd: bool) -> None:
        """One round, after a light look. `odd`: the judge is looking closer, so this is no matter of pace."""
        beat = None if odd else self._beat(attempt)
        for finding in self._take(Interrupted() if beat is None else beat):
            match finding:
                case Slowed():
                    self._slowed(attempt, finding)
                case Eased():
                    self._asides.close("recovered", "straggler")

    def peek(self) -> None:
        """What the ranks are at now, while that is asked for."""
        if self._state.odd and self._eyes.processes:
            self._clock.sleep(self._dice.uniform(0.0, _JITTER_S))
            self._take(Moment(doing=self._doing()))

    def _take(self, event: PaceEvent) -> tuple[PaceFinding, ...]:
        self._state, findings = step(self._state, event, self._policy)
        return findings

    def _beat(self, attempt: Attempt) -> Beat | None:
        seen, marks = self._eyes.processes, self._eyes.marks
        if len(seen) < attempt.world_size():
            return None  # some rank has ended
        exact = len(marks) == len(seen)
        steps = min(mark.steps for mark in marks.values()) if exact else self._eyes.best_step()
        if steps is None:
            return None
        at_s = self._clock.mono_s()
        last = [mark.last_step_at_mono_s or at_s for mark in marks.values() if mark.steps == steps] if exact else [at_s]
        return Beat(
            at_s=at_s,
            steps=steps,
            stepped_at_s=max(last),
            exact=exact,
            training=not exact or all(mark.phase == _TRAINS for mark in marks.values()),
            ranks=tuple(_counters(rank, sample) for rank, sample in seen.items()),
            doing=self._doing(),
            pressure_s=pressures_s(),
            foreign_cpu_s=self._foreign_cpu_s(),
        )

    def _doing(self) -> dict[int, str]:
        """Empty where it cannot be learned of every rank: the one that is missing might be the one that counts."""
        found = {rank: doing_of(sample.id) for rank, sample in self._eyes.processes.items()}
        known = {rank: what for rank, what in found.items() if not isinstance(what, Missing)}
        return known if len(known) == len(found) else {}

    def _foreign_cpu_s(self) -> float | None:
        busy = busy_cpu_s()
        own = sum(sample.cpu_ticks for sample in self._eyes.own_processes().values()) / _TICKS
        return None if isinstance(busy, Missing) else busy - own

    def _slowed(self, attempt: Attempt, finding: Slowed) -> None:
        if finding.diagnosis.culprit_ranks and not self._borne_out(finding.diagnosis.culprit_ranks[0]):
            self._take(Refuted())
            return
        onset_unix_s = self._clock.unix_s() - (self._clock.mono_s() - finding.onset_s)
        found = degraded_link(finding.diagnosis, self._several_looks()) if attempt.elsewhere else finding.diagnosis
        self._asides.tell(attempt.number, onset_unix_s, self._with_witness(found))
        self._eyes.calm()  # looks that were taken at a job that moves explain no later silence

    def _several_looks(self) -> tuple[Snapshot, ...]:
        """At moments that do not march in step with the job's own."""
        looks = []
        for _ in range(_LINK_LOOKS):
            looks.append(self._eyes.look())
            self._clock.sleep(_LOOK_EVERY_S + self._dice.uniform(0.0, _JITTER_S))
        return tuple(looks)

    def _with_witness(self, found: Diagnosis) -> Diagnosis:
        """What binding and GPUs say stands beside it, and changes neither its cause nor its certainty."""
        pids = {rank: sample.id.pid for rank, sample in self._eyes.own_processes().items()}
        found = msgspec.structs.replace(found, reasons_for=(*found.reasons_for, *misbound(pids)))
        gpus = sample_gpus()
        if isinstance(gpus, Missing):
            return found
        log = kernel_log()
        errors = () if isinstance(log, Missing) else driver_errors(xids(log), since_boot_s=self._clock.mono_s() - _ERRORS_S)
        said = (*witness(gpus, {pid: rank for rank, pid in pids.items()}), *errors)
        return msgspec.structs.replace(found, reasons_for=(*found.reasons_for, *said))

    def _borne_out(self, rank: int) -> bool:
        """A rank that waits for its peers in most looks holds nobody up, however it waits."""
        waits = 0
        for _ in range(_LOOKS):
            snapshot = self._eyes.look()
            waits += any(sample.rank == rank and classify(sample).for_peers() for sample in snapshot.ranks)
            self._clock.sleep(_LOOK_EVERY_S)
        self._eyes.calm()
        return waits <= _LOOKS // 2


def _counters(rank: int, sample: ProcessSample) -> RankBeat:
    found = running_of(sample.id)
    if isinstance(found, Running):
        return RankBeat(rank=rank, cpu_s=found.cpu_s, delay_s=found.delay_s)
    return RankBeat(rank=rank, cpu_s=sample.main_thread_ticks / _TICKS, delay_s=None)
