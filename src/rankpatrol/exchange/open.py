"""Opens an exchange by its address."""

import importlib
from typing import Any

from rankpatrol.core.errors import PatrolError, UsageProblem
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.exchange.key_files import KeyFiles, tls_context
from rankpatrol.exchange.local import LocalWire, room_named
from rankpatrol.exchange.names import token_of
from rankpatrol.exchange.port import Exchange, Role
from rankpatrol.exchange.serving import Service
from rankpatrol.exchange.talk import Talk
from rankpatrol.exchange.wire import Seat, Wire
from rankpatrol.system.clock import Clock, SystemClock

__all__ = ["Address", "ClientMissing", "KeyFiles", "connected_within", "open_exchange", "parse_address"]
_LOOKS_EVERY_S = 0.02


class ClientMissing(PatrolError):
    """The client of the broker is not installed."""

    help = "Install it where the agent runs: pip install '.[cluster]' in rankpatrol's clone"


def open_exchange(address: Address, node: str, *, role: Role, clock: Clock | None = None, keys: KeyFiles | None = None) -> Exchange:
    """Take this node's place; returns at once, and connects (and connects again) in the background. `tls://` needs `keys`.

    Raises UsageProblem where a name is too long or keys are missing, BadInput or NoPermission where keys cannot be used, ClientMissing
    where the extra is not installed.
    """
    token_of(node)
    if (address.scheme == "tls") != (keys is not None):
        raise UsageProblem(
            f"{address} needs {'a certificate, its key and the authority' if keys is None else 'no certificate'}",
            help="tls:// goes with the files that `rankpatrol hub init-keys` makes; nats:// with a token.",
        )
    if keys is not None:
        tls_context(keys)
    clock = clock or SystemClock()
    service = Service(clock)
    if address.scheme == "local":
        return Talk(LocalWire(room_named(address.room), Seat(node, role), service.take, clock), service)
    wire: Wire = _nats(address).NatsWire(address, Seat(node, role), service.take, clock, keys)
    return Talk(wire, service)


def connected_within(exchange: Exchange, deadline_s: float, clock: Clock | None = None) -> bool:
    """Wait until the exchange is connected; False once the deadline passes."""
    clock = clock or SystemClock()
    until = clock.mono_s() + deadline_s
    while not exchange.connected():
        if clock.mono_s() >= until:
            return False
        clock.sleep(_LOOKS_EVERY_S)
    return True


def _nats(address: Address) -> Any:
    try:
        return importlib.import_module("rankpatrol.exchange.nats")
    except ModuleNotFoundError as problem:
        raise ClientMissing(f"no client for {address}: {problem}") from problem
