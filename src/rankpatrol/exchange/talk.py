"""The port over any carrier: waiting, asking side by side, and copying are the same everywhere."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.exchange.files import FileWish, copy_file
from rankpatrol.exchange.port import Answer, Heard
from rankpatrol.exchange.serving import Service
from rankpatrol.exchange.wire import MOST_BYTES, Order, Wire, settled
from rankpatrol.system.background import within


class Talk:
    """An Exchange (port.py)."""

    def __init__(self, wire: Wire, service: Service) -> None:
        self._wire, self._service = wire, service

    def tell(self, state: bytes) -> None:
        self._wire.tell(state)

    def states(self) -> dict[str, Heard]:
        return self._wire.states()

    def serve(self, answer: Answer) -> None:
        self._service.serve(answer)

    def offer(self, name: str, path: Path) -> None:
        self._service.offer(name, path)

    def ask(self, node: str, command: str, body: bytes, deadline_s: float) -> bytes | Missing:
        return self.scatter((node,), command, body, deadline_s)[node]

    def scatter(self, nodes: Sequence[str], command: str, body: bytes, deadline_s: float) -> dict[str, bytes | Missing]:
        return self.ask_each(dict.fromkeys(nodes, body), command, dict.fromkeys(nodes, deadline_s))

    def ask_each(self, bodies: Mapping[str, bytes], command: str, deadlines_s: Mapping[str, float]) -> dict[str, bytes | Missing]:
        began_s = time.monotonic()
        asked = {node: self._send(node, Order("do", command, body), deadlines_s[node]) for node, body in bodies.items()}
        return {node: _outcome(node, future, began_s + deadlines_s[node], deadlines_s[node]) for node, future in asked.items()}

    def fetch(self, node: str, name: str, into: Path, deadline_s: float) -> int | Missing:
        def send(wish: FileWish, left_s: float) -> "Future[bytes | Missing]":
            return self._wire.send(node, Order("file", name, msgspec.json.encode(wish)), left_s)

        # The disk it is written to may hang: then its thread is left behind.
        copied = within(lambda: copy_file(send, into, deadline_s), deadline_s, name="exchange-copy")
        return Missing(f"{name} of {node}: {copied.reason}") if isinstance(copied, Missing) else copied

    def _send(self, node: str, order: Order, deadline_s: float) -> "Future[bytes | Missing]":
        if len(order.body) > MOST_BYTES:
            return settled(Missing(f"an order of {len(order.body)} bytes is larger than one message ({MOST_BYTES})"))
        return self._wire.send(node, order, deadline_s)

    def connected(self) -> bool:
        return self._wire.connected()

    def trouble(self) -> str:
        return self._wire.trouble()

    def close(self) -> None:
        self._wire.close()
        self._service.stop()


def _outcome(node: str, future: "Future[bytes | Missing]", until: float, deadline_s: float) -> bytes | Missing:
    try:
        return future.result(max(0.0, until - time.monotonic()))
    except FutureTimeout:
        return Missing(f"{node}: no answer within {deadline_s:g} s")
