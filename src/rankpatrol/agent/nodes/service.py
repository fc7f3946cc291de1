"""What a node does for the agent that judges: tells its state, looks when asked, and carries out orders about its own ranks."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol import __version__
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.nodes.wire import (
    VERSION,
    Ended,
    Greeting,
    Light,
    Look,
    NodeState,
    OfGroup,
    OfRanks,
    Part,
    Seen,
    StartNext,
    pack,
    unpack,
)
from rankpatrol.agent.roster import Attempt, read_attempt
from rankpatrol.agent.sealing import native_stack
from rankpatrol.agent.switches import Switches
from rankpatrol.agent.within import lines_of, recordings_of
from rankpatrol.collect.gpus import sample_gpus
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import ProcessSample
from rankpatrol.core.starts import NextStart
from rankpatrol.evidence.clean import clean
from rankpatrol.evidence.host import host_facts, kernel_log
from rankpatrol.formats.kernel_log import kills
from rankpatrol.launch.rundir import JobSpec, LauncherExit, OrderedEnd, Released, ResumePoint, RunDir
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

_HOST_S = 6.0
# A close look takes up to some ten seconds, a light round some milliseconds.
_TURN_S = 0.5
# A look at 16 ranks is some MB; an incident takes a few of them.
_COPIES, _COPIES_KEPT = "evidence", 24
_NOT_HERE = "this node has no ranks of that attempt"


class NodeService:
    """One node of a job of several. Rounds and answers take turns: both look at the same ranks."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, node: str, clock: Clock, every_s: float = 1.0) -> None:
        """`every_s`: how often our state is told."""
        self._every_s = every_s
        self._spec, self._run_dir, self._node, self._clock = spec, run_dir, node, clock
        self._eyes = Eyes(spec.job, Path(spec.job_dir), clock)
        self._scheduler = LocalScheduler(run_dir)
        self._turn = threading.RLock()
        self._switches = None if spec.attached else Switches(run_dir)
        self._told = (-1, Light())
        self._newest_good: ResumePoint | None = None
        self._greeted_at_s: float | None = None
        self._answers: dict[str, Callable[[bytes], object]] = {
            "hello": self._hello,
            "look": self._look,
            "recordings": self._recordings,
            "lines": self._lines,
            "native": self._native,
            "host": self._host,
            "start_next": self._start_next,
            "release": self._release,
            "end_attempt": self._end_attempt,
            "end_job": self._end_job,
        }

    def answer(self, command: str, body: bytes) -> bytes:
        """The reply to one command. Raises PatrolError for one that is not known here."""
        self._greeted_at_s = self._clock.mono_s()
        known = self._answers.get(command)
        if known is None:
            raise PatrolError(f"no command is called {command[:40]!r}", help="Run the same version of rankpatrol on every node.")
        return pack(known(body))

    def state(self) -> bytes:
        """What this node tells now, after a light round."""
        attempts = [read_attempt(self._run_dir, number) for number in self._run_dir.claimed_attempts()[-2:]]
        light = self._light_now(attempts[-1]) if attempts else Light()
        state = NodeState(
            version=VERSION,
            release=__version__,
            node=self._node,
            at_mono_s=self._clock.mono_s(),
            at_unix_s=self._clock.unix_s(),
            parts=tuple(self._part(attempt) for attempt in attempts),
            light=light,
            ordered=self._run_dir.read("ending.json", OrderedEnd),
            ended=self._run_dir.read("launcher_exit.json", LauncherExit),
            paused=None if self._switches is None else self._switches.latest(),
            every_s=self._every_s,
        )
        return pack(state)

    def greeted_at_s(self) -> float | None:
        """When the judging agent was heard last, by our monotonic clock."""
        return self._greeted_at_s

    def exits(self) -> tuple[int, int]:
        """The newest attempt and how many of its ranks have ended: what must be told at once."""
        numbers = self._run_dir.claimed_attempts()
        attempt = read_attempt(self._run_dir, numbers[-1]) if numbers else None
        return (-1, 0) if attempt is None else (attempt.number, len(attempt.exits) + len(attempt.gone) + 1000 * len(attempt.places))

    def _light_now(self, attempt: Attempt) -> Light:
        """While a close look is under way the last one stands: a node that says nothing meanwhile would count as lost."""
        if self._turn.acquire(timeout=_TURN_S):
            try:
                self._told = (attempt.number, self._light(attempt))
            finally:
                self._turn.release()
        number, light = self._told
        return light if number == attempt.number else Light()

    def _light(self, attempt: Attempt) -> Light:
        before = self._eyes.attempt
        if before is None or before.number != attempt.number:
            self._eyes.begin(attempt)
        self._eyes.attempt = attempt
        activities = self._eyes.light()
        logs = {rank: msgspec.structs.replace(log, tail=()) for rank, log in self._eyes.logs.items()}
        processes = {rank: msgspec.structs.replace(each, command=_SENT_ONCE) for rank, each in self._eyes.processes.items()}
        return Light(activities=activities, processes=processes, marks=dict(self._eyes.marks), logs=logs)

    def _part(self, attempt: Attempt) -> Part:
        return Part(
            number=attempt.number,
            group=self._run_dir.group_of(attempt.number) or "",
            places=attempt.places,
            exits=attempt.exits,
            gone=tuple(attempt.gone),
        )

    def _attempt(self, group: str) -> Attempt | None:
        """Our newest attempt of this group."""
        numbers = [number for number in self._run_dir.claimed_attempts() if self._run_dir.group_of(number) == group]
        return read_attempt(self._run_dir, numbers[-1]) if numbers else None

    def _hello(self, body: bytes) -> str:
        told = unpack(body, Greeting) if body else Greeting()
        if self._spec.attached:  # whose ranks nobody starts through us
            return ""
        if told.newest_good is not None and told.newest_good != self._newest_good:
            self._run_dir.write("newest_good.json", told.newest_good)
            self._newest_good = told.newest_good
        begun = told.start is not None and self._attempt(told.start.group or "") is not None
        return self._write_start(told.start) if told.start is not None and begun else ""

    def _look(self, body: bytes) -> Seen:
        asked = unpack(body, Look)
        with self._turn:
            attempt = self._attempt(asked.group)
            if attempt is None:
                raise PatrolError(_NOT_HERE, help="")
            self._eyes.attempt = attempt
            seen = self._eyes.look(full=asked.full)
        log = kernel_log() if asked.full else Missing("not asked for")
        told = Seen(at_mono_s=seen.at_mono_s, ranks=seen.ranks, kills={} if isinstance(log, Missing) else _of_ours(kills(log), seen.ranks))
        if asked.full:
            self._keep(asked.name, told)
        return told

    def _keep(self, name: str, told: Seen) -> None:
        """On our own disk first: what goes over the bus is a copy. Where that is full, the answer is the only one."""
        folder = self._run_dir.spool / _COPIES
        # A later agent of the first node counts its looks anew.
        path = folder / f"{self._clock.unix_s():.0f}-{Path(name).name[:80]}.json"
        with contextlib.suppress(OSError):
            folder.mkdir(exist_ok=True)
            write_atomic(path, msgspec.json.encode(clean(told)), durable=True)
            for older in sorted(folder.iterdir(), key=lambda copy: copy.stat().st_mtime_ns)[:-_COPIES_KEPT]:
                older.unlink()

    def _recordings(self, body: bytes) -> dict[int, Any]:
        asked = unpack(body, OfRanks)
        attempt = self._attempt(asked.group)
        return dict(recordings_of(place for place in attempt.places if place.rank in asked.ranks)) if attempt else {}

    def _lines(self, body: bytes) -> dict[int, Any]:
        asked = unpack(body, OfRanks)
        attempt = self._attempt(asked.group)
        return dict(lines_of([place for place in attempt.places if place.rank in asked.ranks])) if attempt else {}

    def _native(self, body: bytes) -> str | Missing:
        asked = unpack(body, OfRanks)
        with self._turn:
            looks = self._eyes.looks
            sample = next((each for each in looks[-1].ranks if each.rank in asked.ranks), None) if looks else None
        return Missing("this rank was not looked at") if sample is None else native_stack(sample)

    def _host(self, _body: bytes) -> dict[str, Any]:
        with self._turn:
            pids = [sample.id.pid for sample in self._eyes.processes.values()]
        paths = [Path(path) for path in (self._spec.job_dir, self._spec.checkpoints, "/dev/shm", "/tmp") if path]  # ruff: ignore[S108] - looked at
        return host_facts(pids, paths, deadline_s=_HOST_S, more={"gpu_counters": sample_gpus})

    def _start_next(self, body: bytes) -> str:
        """Nobody's word but the judging agent's: so all nodes start from the same checkpoint."""
        return self._write_start(unpack(body, StartNext))

    def _write_start(self, asked: StartNext) -> str:
        number = self._number(asked)
        if number is None:
            return "which attempt is meant is not known there yet"
        try:
            standing = self._scheduler.resume_from(self._in_our_time(asked, number))
        except OSError as problem:
            return f"it cannot be written down: {problem.strerror}"
        return "" if standing == asked.start.checkpoint else f"another word stands there: {standing or 'no checkpoint'}"

    def _in_our_time(self, asked: StartNext, number: int) -> NextStart:
        """Clocks may be an hour apart, and our ranks wait by ours."""
        ahead_s = 0.0 if asked.at_unix_s is None else self._clock.unix_s() - asked.at_unix_s
        not_before = asked.start.not_before_unix_s
        ours = None if not_before is None else not_before + ahead_s
        return msgspec.structs.replace(asked.start, attempt=number, not_before_unix_s=ours)

    def _number(self, asked: StartNext) -> int | None:
        """Of our own count; None where neither it nor the one before is here: the first word stands, also a wrong one."""
        here = self._attempt(asked.group) if asked.group else None
        if here is not None:
            return here.number
        before = self._attempt(asked.after) if asked.after else None
        begun = self._run_dir.claimed_attempts()
        return before.number + 1 if before is not None and before.number == begun[-1] else None

    def _release(self, body: bytes) -> str:
        attempt = self._attempt(unpack(body, OfGroup).group)
        if attempt is None:
            return _NOT_HERE
        self._run_dir.write_first(f"released.{attempt.number}.json", Released(at_unix_s=self._clock.unix_s()))
        return ""

    def _end_attempt(self, body: bytes) -> Ended:
        asked = unpack(body, OfGroup)
        attempt = self._attempt(asked.group)
        if attempt is None:
            return Ended()
        report = self._scheduler.end_attempt(attempt.number, asked.grace_s)
        return Ended(ended=report.ended, failed=report.failed)

    def _end_job(self, _body: bytes) -> str:
        return self._scheduler.end_job()


_SENT_ONCE = Missing("not told in light rounds")


def _of_ours(lines: dict[int, str], ranks: tuple[Any, ...]) -> dict[int, str]:
    """Pids mean something on one node only: those of our ranks' families."""
    ours = {sample.pid for sample in ranks} | {child.id.pid for sample in ranks for child in sample.descendants}
    ours |= {sample.process.id.pid for sample in ranks if isinstance(sample.process, ProcessSample)}
    return {pid: line for pid, line in lines.items() if pid in ours}
