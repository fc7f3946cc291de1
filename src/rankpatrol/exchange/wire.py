"""What lies below the port: orders to a node and states to the hub, over any carrier."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from rankpatrol.core.records import Missing, Record
from rankpatrol.exchange.port import Heard, Role

# One message of a broker: NATS's own default of max_payload. What is larger is refused on our side, with a reason.
MOST_BYTES = 1 << 20
_GOOD, _BAD = b"+", b"-"


class Seat(Record, frozen=True):
    """Who speaks here."""

    node: str
    role: Role


class Order(Record, frozen=True):
    """What a node is asked: a command of the agents (`do`), or a part of an offered file (`file`)."""

    kind: str
    name: str
    body: bytes


Reply = Callable[[bytes], None]
# Takes an order and sees to it that it is answered once, on this thread or on another; never blocks.
Taker = Callable[[Order, Reply], None]


class Wire(Protocol):
    """A carrier. Nothing of it blocks."""

    def tell(self, state: bytes) -> None: ...
    def states(self) -> dict[str, Heard]: ...
    def send(self, node: str, order: Order, deadline_s: float) -> "Future[bytes | Missing]": ...
    def connected(self) -> bool: ...
    def trouble(self) -> str: ...
    def close(self) -> None: ...


def good(answer: bytes) -> bytes:
    """An answer as it travels; one too large to travel becomes the reason why not."""
    if len(answer) >= MOST_BYTES:
        return bad(f"the answer has {len(answer)} bytes, more than the {MOST_BYTES - 1} that one message holds")
    return _GOOD + answer


def bad(reason: str) -> bytes:
    """A reason as it travels."""
    return _BAD + reason.encode(errors="backslashreplace")[: MOST_BYTES - 1]


def opened(node: str, reply: bytes) -> bytes | Missing:
    """What came from a node: its answer, or why there is none."""
    if reply.startswith(_GOOD):
        return reply[1:]
    if reply.startswith(_BAD):
        return Missing(f"{node}: {reply[1:].decode(errors='replace')}")
    return Missing(f"{node} answered in a form that is not known here: has it another version of rankpatrol?")


def settled(value: bytes | Missing) -> "Future[bytes | Missing]":
    """An outcome that is known already."""
    future: Future[bytes | Missing] = Future()
    future.set_result(value)
    return future
