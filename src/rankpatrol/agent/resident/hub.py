"""The hub of a cluster: one judge for each job that resident agents speak of. It names, seals and tells; it ends nothing."""

import contextlib
import functools
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from rankpatrol.agent.agent import Agent
from rankpatrol.agent.nodes.remote import OtherNodes
from rankpatrol.agent.resident.envelope import JobExchange, Jobs
from rankpatrol.agent.resident.job_voice import JobVoice
from rankpatrol.agent.taking_up import take_up
from rankpatrol.agent.voice import Voice
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.exchange.port import Exchange, Heard
from rankpatrol.launch.rundir import JobSpec, LauncherExit, Released, RunDir
from rankpatrol.metrics.records import Reading
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

_KEPT = "jobs.json"
# A node that is cut off for a while comes back; a job of which nobody has spoken for so long is over.
_OVER_AFTER_S = 60.0
# Nodes tell of their ranks each 5 s: a large job is judged every few seconds, and each second once something is odd.
_ODD_ROUND_S = 0.9
_RANKS_A_SECOND, _ROUND_MOST_S = 512, 3.0
_LATEST_ROUND_S = 5.0
# A look waits for nodes that do not answer, and a seal for the disk: other jobs need not.
_JOBS_AT_ONCE = 8
# The last reading of a job that is over is served so long: whoever scrapes once a minute sees how it ended.
_LAST_READING_S = 180.0


class HubPlan(Record, frozen=True, kw_only=True):
    """How the hub works: its name on the exchange, where jobs' records go, its patience, and whether it keeps readings for metrics."""

    node: str
    jobs_dir: Path
    patience_s: float
    readings: bool = False


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
        # Nobody there judges alone: no node need know that it is heard.
        self._exchange = JobExchange(hub.exchange, hub.jobs, key)
        self._others = OtherNodes(self._exchange, hub.plan.node, self._run_dir.spool, hub.clock, greet_every_s=None)
        self._agent = Agent(spec, self._run_dir, hub.clock, JobVoice(hub.voice, key), self._others)
        self._readings = self._agent.keep_readings() if hub.plan.readings else None
        self._numbers = {self._run_dir.group_of(number): number for number in self._run_dir.claimed_attempts()}
        self._clock = hub.clock
        self._spoken_at_s = hub.clock.mono_s()
        self._due_at_s = self._latest_at_s = float("-inf")
        self._words: dict[str, Heard] | None = None
        self._over = False
        if kept is not None:
            take_up(self._agent, self._run_dir.spool)

    def readings(self) -> tuple[Reading, ...]:
        """What its metrics are made of, where anybody wants them."""
        return () if self._readings is None else self._readings.latest()

    def is_due(self) -> bool:
        """True where it is time for a round: seldom for a large job in which nothing is odd, and for one of which nothing new has come."""
        now_s = self._clock.mono_s()
        if now_s < self._due_at_s:
            return False
        return self._exchange.states() is not self._words or now_s >= self._latest_at_s or self._agent.sees_something_odd()

    def round(self, spoken_of: tuple[str, ...]) -> str | None:
        """One round; None once the job is over and its last word is said."""
        began_s = self._clock.mono_s()
        self._due_at_s, self._latest_at_s = began_s + _ODD_ROUND_S, began_s + _LATEST_ROUND_S
        self._words = self._exchange.states()
        self._number_attempts()
        self._spoken_at_s = began_s if spoken_of else self._spoken_at_s
        if began_s - self._spoken_at_s > _OVER_AFTER_S and not self._over:
            self._over = True
            self._run_dir.write("launcher_exit.json", LauncherExit(exit_code=None, ended_unix_s=self._clock.unix_s()))
        self._agent.glance()
        if self._agent.finished():
            self._run_dir.remove()
            return None
        said = self._agent.cycle()
        self._due_at_s = began_s + (_ODD_ROUND_S if self._agent.sees_something_odd() else _round_every_s(self._agent.ranks()))
        return said

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


def _round_every_s(ranks: int) -> float:
    return min(_ROUND_MOST_S, max(_ODD_ROUND_S, ranks / _RANKS_A_SECOND))


class Hub:
    """All jobs of a cluster."""

    def __init__(self, exchange: Exchange, plan: HubPlan, clock: Clock, voice: Voice) -> None:
        self.exchange, self.plan, self.clock, self.voice = exchange, plan, clock, voice
        self.jobs = Jobs(exchange, plan.node)
        self._judged: dict[str, HubJob] = {}
        self._under_way: dict[str, Future[bool]] = {}
        self._last_readings: dict[str, tuple[float, tuple[Reading, ...]]] = {}
        self._pool = ThreadPoolExecutor(max_workers=_JOBS_AT_ONCE, thread_name_prefix="hub-job")
        self._kept = _read_kept(plan.jobs_dir)

    def round(self) -> str:
        """One short round: what is due is begun, each job on a thread of its own, and nothing is waited for. What goes on, in a line."""
        # Also those that ended while no hub was there: they get their last word, and their records do not lie about.
        for key in (*self.jobs.hear(), *self._kept):
            if key not in self._judged:
                self._last_readings.pop(key, None)
                self._try(key, functools.partial(self._begin, key))
        self._gather()
        for key, job in self._judged.items():
            if key not in self._under_way and job.is_due():
                self._under_way[key] = self._pool.submit(self._round_of, key, job)
        problems = "".join(f" · {node}: {why}" for node, why in list(self.jobs.problems.items())[:3])
        return f"{say_count(len(self._judged), 'job')}{problems}"

    def readings(self) -> tuple[Reading, ...]:
        """The newest of each job, and for a while the last of those that are over. Any thread may ask."""
        now_s = self.clock.mono_s()
        ended = [readings for until_s, readings in list(self._last_readings.values()) if until_s > now_s]
        return tuple(reading for each in (*(job.readings() for job in list(self._judged.values())), *ended) for reading in each)

    def settle(self, within_s: float) -> None:
        """Wait for what is under way: a seal, a word that is being written."""
        wait(self._under_way.values(), within_s)
        self._gather()
        self._pool.shutdown(wait=False, cancel_futures=True)

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

    def _round_of(self, key: str, job: HubJob) -> bool:
        """True once the job is over."""
        over = False

        def deed() -> None:
            nonlocal over
            over = job.round(self.jobs.spoken_of(key)) is None

        self._try(key, deed)
        return over

    def _gather(self) -> None:
        """What has come of the rounds that were begun."""
        for key in [key for key, round_of_it in self._under_way.items() if round_of_it.done()]:
            if self._under_way.pop(key).result():
                self._remember_last(key, self._judged.pop(key))
                self._kept.pop(key, None)
                self.jobs.forget(key)
                self._keep()

    def _remember_last(self, key: str, job: HubJob) -> None:
        now_s = self.clock.mono_s()
        kept = {each: last for each, last in self._last_readings.items() if last[0] > now_s}
        self._last_readings = {**kept, key: (now_s + _LAST_READING_S, job.readings())}

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
        except Exception as problem:  # ruff: ignore[BLE001] - a fault of ours, which is met again in a second; the others are judged on
            self.voice.say(f"{key}: a round failed, which is a bug of rankpatrol: {type(problem).__name__}: {problem}", "alert")


def _read_kept(folder: Path) -> dict[str, _Kept]:
    try:
        return msgspec.json.decode((folder / _KEPT).read_bytes(), type=dict[str, _Kept])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
