"""The hub of a cluster: one judge for each job that resident agents speak of. It names, seals and tells; it ends nothing."""

import contextlib
import functools
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rankpatrol.agent.agent import Agent
from rankpatrol.agent.nodes.remote import OtherNodes
from rankpatrol.agent.resident.envelope import JobExchange, Jobs
from rankpatrol.agent.resident.job_voice import JobVoice
from rankpatrol.agent.taking_up import take_up
from rankpatrol.agent.voice import Voice
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.exchange.port import Exchange
from rankpatrol.launch.rundir import JobSpec, LauncherExit, Released, RunDir
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

_KEPT = "jobs.json"
# A node that is cut off for a while comes back; a job of which nobody has spoken for so long is over.
_OVER_AFTER_S = 60.0


class HubPlan(Record, frozen=True, kw_only=True):
    """How the hub works: its name on the exchange, where jobs' records go, and its patience."""

    node: str
    jobs_dir: Path
    patience_s: float


class _Kept(Record, frozen=True):
    """Where the records of a job under watch are: a hub that is started again goes on with it."""

    run_dir: str
    job_dir: str


class HubJob:
    """One job: its judge, over all nodes that speak of it."""

    def __init__(self, key: str, kept: _Kept | None, hub: "Hub") -> None:
        self.key = key
        self._run_dir, spec = hub.records(key, kept)
        self.kept = _Kept(str(self._run_dir.path), spec.job_dir)
        self._others = OtherNodes(JobExchange(hub.exchange, hub.jobs, key), hub.plan.node, self._run_dir.spool, hub.clock)
        self._agent = Agent(spec, self._run_dir, hub.clock, JobVoice(hub.voice, key), self._others)
        self._numbers = {self._run_dir.group_of(number): number for number in self._run_dir.claimed_attempts()}
        self._clock = hub.clock
        self._spoken_at_s = hub.clock.mono_s()
        self._over = False
        if kept is not None:
            take_up(self._agent, self._run_dir.spool)

    def round(self, spoken_of: tuple[str, ...]) -> str | None:
        """One round; None once the job is over and its last word is said."""
        self._number_attempts()
        now_s = self._clock.mono_s()
        self._spoken_at_s = now_s if spoken_of else self._spoken_at_s
        if now_s - self._spoken_at_s > _OVER_AFTER_S and not self._over:
            self._over = True
            self._run_dir.write("launcher_exit.json", LauncherExit(exit_code=None, ended_unix_s=self._clock.unix_s()))
        self._agent.glance()
        if self._agent.finished():
            self._run_dir.remove()
            return None
        return self._agent.cycle()

    def _number_attempts(self) -> None:
        """The hub has no ranks of its own: an attempt begins when nodes speak of ranks that were started together and are new."""
        for group in self._others.newest_groups():
            if group not in self._numbers:
                number = self._numbers[group] = len(self._numbers)
                opened = {"group": _group(group)}
                write_atomic(self._run_dir.path / "openings" / f"{number}.json", msgspec.json.encode(opened))
                self._run_dir.write(f"claims/{number}.hub.json", Released(at_unix_s=self._clock.unix_s()))


def _group(text: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError:
        return {}  # an older release's, or nobody's: no attempt is made of it


class Hub:
    """All jobs of a cluster."""

    def __init__(self, exchange: Exchange, plan: HubPlan, clock: Clock, voice: Voice) -> None:
        self.exchange, self.plan, self.clock, self.voice = exchange, plan, clock, voice
        self.jobs = Jobs(exchange)
        self._judged: dict[str, HubJob] = {}
        self._kept = _read_kept(plan.jobs_dir)

    def round(self) -> str:
        """One round over all jobs; what goes on, in a line."""
        # Also those that ended while no hub was there: they get their last word, and their records do not lie about.
        for key in (*self.jobs.hear(), *self._kept):
            if key not in self._judged:
                self._try(key, functools.partial(self._begin, key))
        for key, job in list(self._judged.items()):
            self._try(key, functools.partial(self._round_of, key, job))
        problems = "".join(f" · {node}: {why}" for node, why in list(self.jobs.problems.items())[:3])
        return f"{len(self._judged)} jobs{problems}"

    def records(self, key: str, kept: _Kept | None) -> tuple[RunDir, JobSpec]:
        """Where a job's records go: where they were, else a new place. Raises BadInput."""
        if kept is not None:
            run_dir = RunDir(Path(kept.run_dir))
            spec = run_dir.read("job.json", JobSpec)
            if spec is not None:
                return run_dir, spec
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", key)[:80]
        folder = self.plan.jobs_dir / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        folder.mkdir(parents=True, exist_ok=True)
        spec = JobSpec(
            job=key,
            job_dir=str(folder),
            command=(),
            policy="observe",
            patience_s=self.plan.patience_s,
            checkpoints=None,
            started_unix_s=self.clock.unix_s(),
            probe=False,
            attached=True,
        )
        run_dir = RunDir.create()
        run_dir.write("job.json", spec)
        write_atomic(
            folder / "job.json", msgspec.json.format(msgspec.json.encode({"run_dir": str(run_dir.path), **msgspec.to_builtins(spec)}))
        )
        return run_dir, spec

    def _begin(self, key: str) -> None:
        kept = self._kept.get(key)
        self._judged[key] = HubJob(key, kept if kept and Path(kept.run_dir).is_dir() else None, self)
        self._keep()

    def _round_of(self, key: str, job: HubJob) -> None:
        if job.round(self.jobs.spoken_of(key)) is None:
            del self._judged[key]
            self._kept.pop(key, None)
            self.jobs.forget(key)
            self._keep()

    def _keep(self) -> None:
        # Of a job that no node has spoken of yet, since we began, the records are still known.
        self._kept.update({key: job.kept for key, job in self._judged.items()})
        with contextlib.suppress(OSError):
            write_atomic(self.plan.jobs_dir / _KEPT, msgspec.json.encode(self._kept))

    def _try(self, key: str, deed: Callable[[], None]) -> None:
        """One job's trouble is not the others'."""
        try:
            deed()
        except (PatrolError, OSError) as problem:
            self.voice.say(f"{key}: a round failed: {problem}", "alert")
        except Exception as problem:  # ruff: ignore[BLE001] - what nodes say is foreign, and the hub is all other jobs' as well
            self.voice.say(f"{key}: a round failed: {type(problem).__name__}: {problem}", "alert")


def _read_kept(folder: Path) -> dict[str, _Kept]:
    try:
        return msgspec.json.decode((folder / _KEPT).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
