"""How the nodes of a job find each other: the first keeps a broker and says in the job directory where; the others look there."""

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from rankpatrol.agent.nodes.parcel import Parcels
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.exchange.open import open_exchange
from rankpatrol.exchange.port import Exchange, Role
from rankpatrol.exchange.rendezvous import Rendezvous, announce, take_back, wait_for_hub
from rankpatrol.exchange.server import Server, start_server
from rankpatrol.launch.nodes import is_local
from rankpatrol.launch.rundir import Cluster, JobSpec, RunDir
from rankpatrol.system.background import Rounds, within
from rankpatrol.system.clock import Clock

_BROKER = "broker"
_LOOKS_EVERY_S = 1.0
_WITHIN_S = 0.1
_ANNOUNCE_S = 5.0


class Hub:
    """The first node's seat: its broker, and the exchange on which it hears the others."""

    def __init__(self, spec: JobSpec, cluster: Cluster, run_dir: RunDir, clock: Clock) -> None:
        """Raises PatrolError where there can be no broker."""
        self._spec, self._cluster = spec, cluster
        given = parse_address(cluster.meet_at) if cluster.meet_at else None
        port, token = (given.port, given.token) if given else (0, "")
        # Where the others' road to us is known, nobody else's is opened.
        listen = cluster.host if cluster.host and is_local(cluster.host) else "0.0.0.0"  # ruff: ignore[S104] - closed by a secret
        self._server: Server
        self._server, found = start_server(run_dir.path / _BROKER, host=listen, port=port, token=token)
        self.address = msgspec.structs.replace(found, host=cluster.host or socket.gethostname())
        near = msgspec.structs.replace(found, host="127.0.0.1") if listen == "0.0.0.0" else found  # ruff: ignore[S104] - compared
        self.exchange: Exchange = open_exchange(near, cluster.node, role=Role.HUB, clock=clock)
        job_dir, run, node, address = Path(spec.job_dir), cluster.run, cluster.node, self.address
        # The job directory may be what hangs: the word is then written once it answers.
        within(lambda: announce(job_dir, run, node, address, clock), _ANNOUNCE_S, name="announce")

    def close(self) -> None:
        """The job is over."""
        within(lambda: take_back(Path(self._spec.job_dir), self._cluster.run), _ANNOUNCE_S, name="take-back")
        self.exchange.close()
        self._server.stop()


class Seat:
    """Another node's seat: it looks for the hub, takes its place, and follows a hub that has moved."""

    def __init__(self, spec: JobSpec, cluster: Cluster, run_dir: RunDir, clock: Clock, answer: Callable[[str, bytes], bytes]) -> None:
        self._cluster, self._folder, self._clock, self._answer = cluster, run_dir.spool, clock, answer
        self._given = parse_address(cluster.meet_at) if cluster.meet_at else None
        self._at: Address | None = None
        self._exchange: Exchange | None = None
        job_dir = Path(spec.job_dir)
        unknown: Rendezvous | Missing = Missing("not looked for yet")
        self._said = Rounds(lambda: _look(job_dir, cluster.run, clock), unknown, every_s=_LOOKS_EVERY_S, name="rendezvous")

    def tell(self, state: bytes) -> None:
        """Give the hub our newest word; kept while there is none."""
        self._follow()
        if self._exchange is not None:
            self._exchange.tell(state)

    def connected(self) -> bool:
        return self._exchange is not None and self._exchange.connected()

    def why_not(self) -> str:
        """Why we are cut off."""
        said = self._said.latest()
        if self._exchange is not None:
            return self._exchange.trouble() or "no answer"
        return said.reason if isinstance(said, Missing) else "connecting"

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def _follow(self) -> None:
        """A URL that somebody gave goes first; its token may stand in the job directory alone."""
        said = self._said.latest()
        there = None if isinstance(said, Missing) else said.address()
        if self._given is not None:
            there = self._given if self._given.token or there is None else msgspec.structs.replace(self._given, token=there.token)
        if there is None or there == self._at or (self._given is not None and not there.token):
            return
        self.close()
        self._at = there
        self._exchange = open_exchange(there, self._cluster.node, role=Role.NODE, clock=self._clock)
        self._exchange.serve(Parcels(self._exchange, self._folder).in_one_message(self._answer))


def _look(job_dir: Path, run: str, clock: Clock) -> Rendezvous | Missing:
    try:
        return wait_for_hub(job_dir, run, clock, _WITHIN_S)
    except PatrolError as problem:
        return Missing(f"{problem}. {problem.help}")
