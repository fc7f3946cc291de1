"""Certificates and rights for resident agents: one authority, a certificate for the broker, the hub and each node.

DIR/authority/   the authority and its key: needed for new certificates alone
DIR/server/      for the broker;  DIR/hub/  for the hub
DIR/nodes/<n>/   for node n alone: ca.pem, cert.pem, key.pem
DIR/demands.conf who may say and hear what;  DIR/nats.conf  a broker's configuration, which includes it; written once, yours to change
"""

import importlib
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankpatrol.core.errors import BadInput, NoPermission, PatrolError, UsageProblem
from rankpatrol.core.records import Record
from rankpatrol.exchange.rights import DEMANDS, HUB, demands_of
from rankpatrol.exchange.server_config import Listen, config_of
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_private

# A node's name becomes a common name (RFC 5280: 64 characters at most) and a folder.
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_*]([A-Za-z0-9._-]{0,252})")
_PORT = 4222


class KeyMakerMissing(PatrolError):
    """The package that makes certificates is not installed."""

    help = "Install it where the keys are made (agents do not need it): pip install '.[cluster]' in rankpatrol's clone"


class KeysWanted(Record, frozen=True, kw_only=True):
    """What to make. `hosts`: the names and addresses by which agents reach the broker; `here` where none were named, now or before."""

    nodes: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    here: tuple[str, ...] = ("localhost",)
    lasts_days: int = 730
    port: int = _PORT


class KeysMade(Record, frozen=True, kw_only=True):
    """What was made, and what was there already. `known`: all nodes that the broker knows now."""

    folder: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    known: tuple[str, ...]
    hosts: tuple[str, ...]


def init_keys(folder: Path, wanted: KeysWanted, clock: Clock) -> KeysMade:
    """Make what is missing or ends soon; what is there stays. Nodes whose folders are there stay known to the broker.

    Raises UsageProblem for names that cannot be, BadInput where the folder cannot be used, KeyMakerMissing.
    """
    for node in wanted.nodes:
        _check_node(node)
    for host in wanted.hosts:
        _check_host(host)
    certificates = _certificates()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        known = tuple(sorted({*wanted.nodes, *_nodes_in(folder)}))
        authority = certificates.Authority(_private(folder / "authority"), clock)
        hosts = wanted.hosts or certificates.hosts_in(folder / "server") or wanted.here
        made: list[str] = []
        kept: list[str] = []
        for place in ("server", "hub", *(f"nodes/{node}" for node in known)):
            name, its_hosts = place.rpartition("/")[2], hosts if place == "server" else ()
            want = certificates.Wanted(name=name, lasts_days=wanted.lasts_days, hosts=its_hosts)
            (made if authority.issue(_private(folder / place), want) else kept).append(place)
        _configure(folder, known, wanted.port)
    except OSError as problem:
        kind = NoPermission if isinstance(problem, PermissionError) else BadInput
        raise kind(f"keys cannot be written: {problem.strerror} ({problem.filename})", help="Name a folder you can write to.") from problem
    return KeysMade(folder=folder, made=tuple(made), kept=tuple(kept), known=known, hosts=hosts)


def _configure(folder: Path, known: Iterable[str], port: int) -> None:
    write_private(folder / DEMANDS, demands_of(folder / "server", known).encode())
    if not (folder / "nats.conf").exists():
        listen = Listen(host="0.0.0.0", port=port, demands=f"include {DEMANDS}\n")  # ruff: ignore[S104] - agents come from outside
        write_private(folder / "nats.conf", config_of(listen).encode())


def _private(folder: Path) -> Path:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _nodes_in(folder: Path) -> Iterable[str]:
    there = folder / "nodes"
    return (path.name for path in there.iterdir() if path.is_dir() and _NODE.fullmatch(path.name)) if there.is_dir() else ()


def _check_node(node: str) -> None:
    if not _NODE.fullmatch(node):
        raise UsageProblem(
            f"{node!r} cannot be the name of a node's certificate", help="Letters, digits, `.`, `_` and `-`, 64 at most: --nodes n1,n2"
        )
    if node in {HUB, "server"}:
        raise UsageProblem(f"a node cannot be named {node}", help=f"{node} is a certificate of its own; name the machine otherwise.")


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host):
            raise UsageProblem(
                f"{host!r} is neither a host's name nor an address", help="--server hub.cluster or --server 10.0.0.1"
            ) from None


def _certificates() -> Any:
    try:
        return importlib.import_module("rankpatrol.exchange.certificates")
    except ModuleNotFoundError as problem:
        raise KeyMakerMissing(f"certificates cannot be made here: {problem}") from problem
