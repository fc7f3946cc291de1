"""Several jobs on one exchange: a node tells of all its jobs at once, and an order says which job it means."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from rankpatrol import __version__
from rankpatrol.agent.nodes.wire import VERSION, NotOurs, pack, unpack
from rankpatrol.core.records import Missing, Record
from rankpatrol.exchange.port import Exchange, Heard


class Envelope(Record, frozen=True, kw_only=True):
    """One node's word of all its jobs: by the name that a job has on every node, its state as `agent.nodes` words it."""

    version: int = VERSION
    release: str = __version__
    jobs: dict[str, bytes] = msgspec.field(default_factory=dict)


class ToJob(Record, frozen=True):
    """An order to the part of this job that a node holds."""

    job: str
    body: bytes


class Jobs:
    """The hub's ear: what nodes tell, job by job. Each word is opened once, however many jobs it speaks of."""

    def __init__(self, exchange: Exchange, own: str) -> None:
        self._exchange, self._own = exchange, own
        self._opened_at_s: dict[str, float] = {}
        # A job's words are never changed, but replaced: whoever holds them sees by that whether anything has come.
        self._words: dict[str, dict[str, Heard]] = {}
        self.problems: dict[str, str] = {}

    def hear(self) -> tuple[str, ...]:
        """Take in what has come; the jobs that any node speaks of. One thread hears, any may ask."""
        fresh: dict[str, dict[str, Heard]] = {}
        for node, heard in self._exchange.states().items():
            if node != self._own and self._opened_at_s.get(node) != heard.heard_at_mono:
                self._opened_at_s[node] = heard.heard_at_mono
                for job, state in self._opened(node, heard).items():
                    fresh.setdefault(job, {})[node] = Heard(state, heard.heard_at_mono)
        for job, words in fresh.items():
            self._words[job] = {**self._words.get(job, {}), **words}
        return tuple(self._words)

    def of(self, job: str) -> dict[str, Heard]:
        """What was heard of one job, by node; the same object as long as nothing new has come."""
        return self._words.get(job, _NOTHING)

    def spoken_of(self, job: str) -> tuple[str, ...]:
        """The nodes whose newest word speaks of this job still."""
        return tuple(node for node, heard in self.of(job).items() if heard.heard_at_mono == self._opened_at_s.get(node))

    def forget(self, job: str) -> None:
        """It is over: its name may be worn by another one later."""
        self._words.pop(job, None)

    def _opened(self, node: str, heard: Heard) -> dict[str, bytes]:
        try:
            envelope = unpack(heard.state, Envelope)
        except NotOurs as problem:
            self.problems[node] = str(problem)
            return {}
        if envelope.version != VERSION:
            self.problems[node] = f"rankpatrol {envelope.release} there speaks version {envelope.version}, this one {VERSION}"
            return {}
        self.problems.pop(node, None)
        return envelope.jobs


_NOTHING: dict[str, Heard] = {}


class JobExchange:
    """The exchange as one job's judge sees it (exchange.port.Exchange): other jobs are not there."""

    def __init__(self, exchange: Exchange, jobs: Jobs, job: str) -> None:
        self._exchange, self._jobs, self._job = exchange, jobs, job

    def states(self) -> dict[str, Heard]:
        return self._jobs.of(self._job)

    def ask(self, node: str, command: str, body: bytes, deadline_s: float) -> bytes | Missing:
        return self._exchange.ask(node, command, self._to_job(body), deadline_s)

    def scatter(self, nodes: Sequence[str], command: str, body: bytes, deadline_s: float) -> dict[str, bytes | Missing]:
        return self._exchange.scatter(nodes, command, self._to_job(body), deadline_s)

    def ask_each(self, bodies: Mapping[str, bytes], command: str, deadlines_s: Mapping[str, float]) -> dict[str, bytes | Missing]:
        return self._exchange.ask_each({node: self._to_job(body) for node, body in bodies.items()}, command, deadlines_s)

    def fetch(self, node: str, name: str, into: Path, deadline_s: float) -> int | Missing:
        return self._exchange.fetch(node, name, into, deadline_s)

    def tell(self, state: bytes) -> None:
        """A judge tells no state."""

    def serve(self, answer: Callable[[str, bytes], bytes]) -> None:
        """A judge takes no orders."""

    def offer(self, name: str, path: Path) -> None:
        """A judge offers nothing."""

    def connected(self) -> bool:
        return self._exchange.connected()

    def trouble(self) -> str:
        return self._exchange.trouble()

    def close(self) -> None:
        """The exchange is the hub's, and goes on."""

    def _to_job(self, body: bytes) -> bytes:
        return pack(ToJob(self._job, body))
