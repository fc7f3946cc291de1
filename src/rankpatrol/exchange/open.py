"""Opens an exchange by its address."""

import importlib

from rankpatrol.core.errors import PatrolError
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.exchange.local import LocalWire, room_named
from rankpatrol.exchange.names import token_of
from rankpatrol.exchange.port import Exchange, Role
from rankpatrol.exchange.serving import Service
from rankpatrol.exchange.talk import Talk
from rankpatrol.exchange.wire import Seat, Wire
from rankpatrol.system.clock import Clock, SystemClock

__all__ = ["Address", "ClientMissing", "connected_within", "open_exchange", "parse_address"]
_LOOKS_EVERY_S = 0.02


class ClientMissing(PatrolError):
    """The client of the broker is not installed."""

    help = "Install it where the agent runs: pip install 'rankpatrol[cluster]'"


def open_exchange(address: Address, node: str, *, role: Role, clock: Clock | None = None) -> Exchange:
    """Take this node's place; returns at once, and connects (and connects again) in the background.

    Raises UsageProblem where a name is too long, ClientMissing where the extra is not installed.
    """
    token_of(node)
    clock = clock or SystemClock()
    service = Service(clock)
    return Talk(_wire(address, Seat(node, role), service, clock), service)


def connected_within(exchange: Exchange, deadline_s: float, clock: Clock | None = None) -> bool:
    """Wait until the exchange is connected; False once the deadline passes."""
    clock = clock or SystemClock()
    until = clock.mono_s() + deadline_s
    while not exchange.connected():
        if clock.mono_s() >= until:
            return False
        clock.sleep(_LOOKS_EVERY_S)
    return True


def _wire(address: Address, seat: Seat, service: Service, clock: Clock) -> Wire:
    if address.scheme == "local":
        return LocalWire(room_named(address.room), seat, service.take, clock)
    try:
        nats = importlib.import_module("rankpatrol.exchange.nats")
    except ModuleNotFoundError as problem:
        raise ClientMissing(f"no client for {address}: {problem}") from problem
    wire: Wire = nats.NatsWire(address, seat, service.take, clock)
    return wire
