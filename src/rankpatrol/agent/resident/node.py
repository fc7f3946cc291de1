"""The agent that stays on a node: it finds the jobs that run there, tells the hub of each, and looks when it is asked. It ends nothing."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

from rankpatrol.agent.attachment import Attachment
from rankpatrol.agent.nodes.parcel import Parcels
from rankpatrol.agent.nodes.service import NodeService
from rankpatrol.agent.nodes.wire import pack, unpack
from rankpatrol.agent.resident.envelope import Envelope, ToJob
from rankpatrol.agent.watching import RENEW_EVERY_S, SURVEY_EVERY_S, Wanted, look_around
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import BadInput, PatrolError
from rankpatrol.core.records import Record
from rankpatrol.discover.records import FoundJob
from rankpatrol.exchange.port import Exchange
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import identify

# Looking is all that a stranger to the job may be asked for: what would change something is refused here, whoever asks.
_LOOKS = frozenset({"hello", "look", "recordings", "lines", "native", "host"})


class Plan(Record, frozen=True, kw_only=True):
    """How a resident agent works: its name, where the jobs' records go, how often it tells the hub."""

    node: str
    folder: Path
    every_s: float = 5.0


class _Part:
    """One job's part on this node."""

    def __init__(self, job: FoundJob, plan: Plan, clock: Clock) -> None:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", job.name)[:60] or "job"
        folder = plan.folder / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{job.ranks[0].process.pid}"
        folder.mkdir(parents=True)
        spec = JobSpec(
            job=job.shared_key,
            job_dir=str(folder),
            command=(),
            policy="observe",
            patience_s=180.0,
            checkpoints=None,
            started_unix_s=clock.unix_s(),
            probe=False,
            attached=True,
        )
        self.job = job
        self.attachment = Attachment(job, spec, plan.node)
        self.service = NodeService(spec, self.attachment.run_dir, plan.node, clock, plan.every_s)

    def lives(self) -> bool:
        """True while any process of it does."""
        above = () if self.job.launcher is None else (self.job.launcher,)
        return any(identify(process.pid) == process for process in (*above, *(rank.process for rank in self.job.ranks)))

    def renews(self) -> bool:
        """True where a rank has gone: another may have come in its place."""
        return any(identify(rank.process.pid) != rank.process for rank in self.job.ranks)


class ResidentNode:
    """All jobs of one node that nobody patrols yet. Jobs of `rankpatrol run` have a patrol."""

    def __init__(self, exchange: Exchange, plan: Plan, clock: Clock) -> None:
        self._exchange, self._plan, self._clock = exchange, plan, clock
        self._parts: dict[str, _Part] = {}
        self._troubles: dict[str, str] = {}
        self._parcels = Parcels(exchange, plan.folder)
        self._surveyed_at_s = self._told_at_s = float("-inf")
        exchange.serve(self._parcels.in_one_message(self.answer))

    def round(self) -> str:
        """One short round; what goes on, in a line."""
        now_s = self._clock.mono_s()
        age_s = now_s - self._surveyed_at_s
        renewed = any(part.renews() for part in self._parts.values())
        if age_s >= SURVEY_EVERY_S or (renewed and age_s >= RENEW_EVERY_S):
            self._surveyed_at_s = now_s
            self._take_in(look_around(Wanted())[0])
        if now_s - self._told_at_s >= self._plan.every_s:
            self._told_at_s = now_s
            self._tell()
        where = "the hub is there" if self._exchange.connected() else f"no hub: {self._exchange.trouble()}"
        troubles = "".join(f" · {key}: {why}" for key, why in list(self._troubles.items())[:3])
        return f"{say_count(len(self._parts), 'job')} · {where}{troubles}"

    def answer(self, command: str, body: bytes) -> bytes:
        """The reply to one order. Raises PatrolError for what is no look, and for a job that is not here."""
        if command not in _LOOKS:
            raise BadInput(f"a resident agent does not do {command[:40]!r}: it only looks", help="Jobs are ended through their scheduler.")
        order = unpack(body, ToJob)
        part = self._parts.get(order.job)
        if part is None:
            raise BadInput("this node holds no part of that job", help="It has just ended, or has not been found yet.")
        return part.service.answer(command, order.body)

    def close(self) -> None:
        """Leave; the jobs go on."""
        self._exchange.close()
        for part in self._parts.values():
            part.attachment.run_dir.remove()
        self._parts.clear()

    def _tell(self) -> None:
        """A part that is over is told once more, with its ranks gone: else they would only fall silent, and look lost."""
        over = [key for key, part in self._parts.items() if not part.lives()]
        told: dict[str, bytes] = {}
        for key, part in self._parts.items():
            with self._troubled(key):
                told[key] = part.service.state()
        self._exchange.tell(pack(Envelope(jobs=told)))
        for key in over:
            self._parts.pop(key).attachment.run_dir.remove()

    def _take_in(self, found: tuple[FoundJob, ...]) -> None:
        self._troubles.clear()
        for job in found:
            if not (job.patrolled_by and Path(job.patrolled_by).exists()):
                with self._troubled(job.key):
                    self._register(job)

    def _register(self, job: FoundJob) -> None:
        part = self._parts.get(job.shared_key)
        if part is None:
            part = self._parts[job.shared_key] = _Part(job, self._plan, self._clock)
        elif part.job.key != job.key and not part.renews():
            raise BadInput("two jobs of one name run here: the first that was found is watched", help="Give each its own --rdzv-id.")
        part.job = job
        part.attachment.register(job)

    @contextlib.contextmanager
    def _troubled(self, key: str) -> Iterator[None]:
        """One job's trouble is not the others'."""
        try:
            yield
            self._troubles.pop(key, None)
        except (PatrolError, OSError) as problem:
            self._troubles[key] = str(problem)
