"""Answers that are too large for one message go as files, which can be fetched."""

import threading
from collections.abc import Callable
from pathlib import Path

from rankpatrol.agent.nodes.wire import MESSAGE_BYTES, offer_of
from rankpatrol.exchange.port import Exchange
from rankpatrol.system.files import write_private

# A hub fetches an answer at once, and asks for a few things at a time.
_KEPT = 8


class Parcels:
    """Keeps the last few large answers of a node in a local folder."""

    def __init__(self, exchange: Exchange, folder: Path) -> None:
        self._exchange, self._folder, self._count = exchange, folder, 0
        self._lock = threading.Lock()

    def in_one_message(self, answer: Callable[[str, bytes], bytes]) -> Callable[[str, bytes], bytes]:
        """The same answers, each in one message: what is too large is left in a file; a later one takes its place."""

        def small(command: str, body: bytes) -> bytes:
            whole = answer(command, body)
            return whole if len(whole) <= MESSAGE_BYTES else self._leave(whole)

        return small

    def _leave(self, answer: bytes) -> bytes:
        with self._lock:  # answers are given on several threads
            self._count = (self._count + 1) % _KEPT
            name = f"answer-{self._count}"
        path = self._folder / f"{name}.bin"
        write_private(path, answer)
        self._exchange.offer(name, path)
        return offer_of(name)
