"""Writes the recording of a job: what its judge was told and what it said, for `rankpatrol replay`."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rankpatrol.agent.voice import Voice
from rankpatrol.journal import JsonLines
from rankpatrol.judge.records import Event, Finding, JudgeState, Observed, Policy
from rankpatrol.judge.tape import AttemptOver, CrashFound, TapeBegan, TapeItem, TapeStopped, TapeWriter, WallMoved, said
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock

NAME = "recording.jsonl"
# Eight ranks that train take some 300 kB an hour: days of a job on one node.
MOST_BYTES = 64 << 20
# Rounds in which nothing is odd wait for each other: one write in ten seconds is enough.
_ROUNDS_TOGETHER = 10
# The wall clock is slewed all the time; what is more than this was set.
_WALL_MOVED_S = 1.0
_PIECE_BYTES = 1 << 20


class Recorder(Protocol):
    """What the agent tells of its judge."""

    def begin(self, policy: Policy, state: JudgeState) -> None: ...
    def heard(self, event: Event, findings: Iterable[Finding]) -> None: ...
    def note(self, item: CrashFound | AttemptOver) -> None: ...
    def flush(self) -> None: ...


class NoRecorder:
    """Nobody asked for a recording."""

    def begin(self, policy: Policy, state: JudgeState) -> None:
        pass

    def heard(self, event: Event, findings: Iterable[Finding]) -> None:
        pass

    def note(self, item: CrashFound | AttemptOver) -> None:
        pass

    def flush(self) -> None:
        pass


def recorder_of(spec: JobSpec, run_dir: RunDir, courier: Courier, clock: Clock, voice: Voice) -> Recorder:
    """The recorder that this job was started with."""
    return TapeRecorder(spec, run_dir.spool, courier, clock, voice) if spec.record else NoRecorder()


class TapeRecorder:
    """Writes on the local disk first; a courier copies what is new to the job directory, which may be full or hang."""

    def __init__(self, spec: JobSpec, spool: Path, courier: Courier, clock: Clock, voice: Voice) -> None:
        self._spec, self._clock, self._voice, self._courier = spec, clock, voice, courier
        self._here, self._there = spool / NAME, Path(spec.job_dir) / NAME
        self._file, self._writer = JsonLines(self._here), TapeWriter()
        self._size_bytes = self._here.stat().st_size if self._here.exists() else 0
        self.most_bytes, self._stopped = MOST_BYTES, False
        self._waiting: list[bytes] = []
        self._wall_s = 0.0

    def begin(self, policy: Policy, state: JudgeState) -> None:
        """A new agent: what came before may lack its last lines."""
        self._wall_s = self._clock.unix_s() - self._clock.mono_s()
        if self._size_bytes:
            self._waiting.append(b"\n")  # its predecessor may have died in the middle of a line
        acts = self._spec.policy == "recover"
        at_s = self._clock.mono_s()
        self._add(TapeBegan(job=self._spec.job, at_s=at_s, unix_s=at_s + self._wall_s, policy=policy, acts=acts, state=state))
        self.flush()

    def heard(self, event: Event, findings: Iterable[Finding]) -> None:
        """What the judge was told, and its answer."""
        self._follow_wall()
        self._add(event)
        findings = tuple(findings)
        if findings:
            self._add(said(findings))
        if findings or not isinstance(event, Observed) or len(self._waiting) >= _ROUNDS_TOGETHER:
            self.flush()

    def note(self, item: CrashFound | AttemptOver) -> None:
        """What befell the attempt beside the judge."""
        self._add(item)
        self.flush()

    def flush(self) -> None:
        """Write what waits, and have it carried on. Never waits for the job directory."""
        if self._waiting:
            lines, self._waiting = b"".join(self._waiting), []
            self._size_bytes += len(lines)
            self._file.append_lines(lines)
            self._courier.send(lambda: carry(self._here, self._there), instead_of=NAME)

    def _add(self, item: TapeItem) -> None:
        if self._stopped:
            return
        self._waiting.append(self._writer.line(item))
        if self._size_bytes + sum(map(len, self._waiting)) > self.most_bytes:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        why = f"the recording has reached {self.most_bytes >> 20} MiB: nothing more is recorded, and the patrol goes on"
        self._waiting.append(self._writer.line(TapeStopped(at_s=self._clock.mono_s(), why=why)))
        self._voice.say(why)
        self.flush()

    def _follow_wall(self) -> None:
        unix_s, at_s = self._clock.unix_s(), self._clock.mono_s()
        if abs(unix_s - at_s - self._wall_s) > _WALL_MOVED_S:
            self._wall_s = unix_s - at_s
            self._add(WallMoved(at_s=at_s, unix_s=unix_s))


def carry(here: Path, there: Path) -> None:
    """Append what `there` lacks of `here`; what is there already stays. Raises OSError, and can be done again."""
    with here.open("rb") as lines:
        descriptor = os.open(there, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with contextlib.closing(os.fdopen(descriptor, "ab", buffering=0)) as copy:
            lines.seek(os.fstat(descriptor).st_size)
            while piece := lines.read(_PIECE_BYTES):
                if copy.write(piece) != len(piece):
                    return  # full in the middle of a piece: the next time goes on from there
