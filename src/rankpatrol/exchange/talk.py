"""The port over any carrier: waiting, asking side by side, and copying are the same everywhere."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.exchange.files import FileWish, copy_file
from rankpatrol.exchange.port import Answer, Heard
from rankpatrol.exchange.serving import Service
from rankpatrol.exchange.wire import MOST_BYTES, Order, Wire
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
        until = time.monotonic() + deadline_s
        order = Order("do", command, body)
        if len(body) > MOST_BYTES:
            why = Missing(f"an order of {len(body)} bytes is larger than one message ({MOST_BYTES})")
            return dict.fromkeys(nodes, why)
        asked = {node: self._wire.send(node, order, deadline_s) for node in nodes}
        return {node: _outcome(node, future, until, deadline_s) for node, future in asked.items()}

    def fetch(self, node: str, name: str, into: Path, deadline_s: float) -> int | Missing:
        def send(wish: FileWish, left_s: float) -> "Future[bytes | Missing]":
            return self._wire.send(node, Order("file", name, msgspec.json.encode(wish)), left_s)

        # The disk it is written to may hang: then its thread is left behind.
        copied = within(lambda: copy_file(send, into, deadline_s), deadline_s, name="exchange-copy")
        return Missing(f"{name} of {node}: {copied.reason}") if isinstance(copied, Missing) else copied

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
