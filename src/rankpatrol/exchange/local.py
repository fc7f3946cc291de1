"""An exchange inside one process: for one node, for tests, and for simulations. Nothing leaves the process."""

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from rankpatrol.core.records import Missing
from rankpatrol.exchange.port import Heard, Role
from rankpatrol.exchange.wire import MOST_BYTES, Order, Seat, Taker, opened, settled
from rankpatrol.system.clock import Clock


class Room:
    """Who is here, by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[str, LocalWire] = {}

    def enter(self, wire: "LocalWire") -> None:
        with self._lock:
            others = list(self._here.values())
            self._here[wire.seat.node] = wire
        if wire.seat.role is Role.HUB:
            for other in others:
                other.tell_again()

    def leave(self, wire: "LocalWire") -> None:
        with self._lock:
            if self._here.get(wire.seat.node) is wire:
                del self._here[wire.seat.node]

    def find(self, node: str) -> "LocalWire | None":
        with self._lock:
            return self._here.get(node)

    def hubs(self) -> "list[LocalWire]":
        with self._lock:
            return [wire for wire in self._here.values() if wire.seat.role is Role.HUB]


_ROOMS: dict[str, Room] = {}
_ROOMS_LOCK = threading.Lock()


def room_named(name: str) -> Room:
    """The one room of this name in this process."""
    with _ROOMS_LOCK:
        return _ROOMS.setdefault(name, Room())


class LocalWire:
    """A Wire (wire.py) whose orders are handed over in memory."""

    def __init__(self, room: Room, seat: Seat, take: Taker, clock: Clock) -> None:
        self.seat, self.take = seat, take
        self._room, self._clock = room, clock
        self._lock = threading.Lock()
        self._heard: dict[str, Heard] = {}
        self._unheard: bytes | None = None
        self._open, self._trouble = True, ""
        room.enter(self)

    def tell(self, state: bytes) -> None:
        if not self._open:
            return
        if len(state) > MOST_BYTES:
            self._trouble = f"a state of {len(state)} bytes is larger than one message ({MOST_BYTES}) and was not told"
            return
        with self._lock:
            self._unheard = bytes(state)
        self.tell_again()

    def tell_again(self) -> None:
        """Tell what no hub has heard yet."""
        hubs = self._room.hubs()
        with self._lock:
            state = self._unheard
            if hubs:
                self._unheard = None
        if state is not None:
            for hub in hubs:
                hub.hear(self.seat.node, state)

    def hear(self, node: str, state: bytes) -> None:
        """A node's newest state, on the hub."""
        with self._lock:
            self._heard[node] = Heard(state, self._clock.mono_s())

    def states(self) -> dict[str, Heard]:
        with self._lock:
            return dict(self._heard)

    def send(self, node: str, order: Order, deadline_s: float) -> "Future[bytes | Missing]":  # ruff: ignore[ARG002] - talk.py keeps it
        if not self._open:
            return settled(Missing("this exchange was closed"))
        there = self._room.find(node)
        if there is None:
            return settled(Missing(f"nobody named {node} is connected"))
        future: Future[bytes | Missing] = Future()

        def reply(answer: bytes) -> None:
            with suppress(InvalidStateError):
                future.set_result(opened(node, answer))

        there.take(order, reply)
        return future

    def connected(self) -> bool:
        return self._open

    def trouble(self) -> str:
        return self._trouble

    def close(self) -> None:
        self._open = False
        self._room.leave(self)
