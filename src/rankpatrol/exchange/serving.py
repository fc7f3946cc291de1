"""What a node does for others: answers of the agent's own, its clock, and the files it offers."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rankpatrol.core.errors import PatrolError, UsageProblem
from rankpatrol.exchange.files import FileWish, answer_wish, read_wish
from rankpatrol.exchange.port import Answer
from rankpatrol.exchange.wire import Order, Reply, bad, good
from rankpatrol.system.clock import Clock

# The command that every node answers by itself, at once: its wall clock, for offset.py.
CLOCK = "clock"
# A capture may take half a minute; a second order must not wait for it. Files are read apart: their disk may hang.
_ANSWERING, _READING = 4, 2
# An agent has a few orders at a time, and a copy has eight parts in flight.
_WAITING_MOST = 256


class Service:
    """One node's answers. An order that comes before `serve` is answered by saying so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._answer: Answer | None = None
        self._offers: dict[str, Path] = {}
        self._answering = Workers("exchange-answer", _ANSWERING)
        self._reading = Workers("exchange-file", _READING)

    def serve(self, answer: Answer) -> None:
        self._answer = answer

    def offer(self, name: str, path: Path) -> None:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise UsageProblem(f"{name!r} is no plain name", help="Offer a file by a name without folders, such as stack.json.")
        self._offers[name] = path

    def take(self, order: Order, reply: Reply) -> None:
        """See to it that an order is answered once; never blocks."""
        if (order.kind, order.name) == ("do", CLOCK):
            reply(good(repr(self._clock.unix_s()).encode()))
            return
        workers = self._reading if order.kind == "file" else self._answering
        if not workers.hand(lambda: reply(self._answered(order))):
            reply(bad("too many orders wait here already"))

    def stop(self) -> None:
        """Take no more; what is being done goes on."""
        self._answering.stop()
        self._reading.stop()

    def _answered(self, order: Order) -> bytes:
        try:
            return good(self._file(order) if order.kind == "file" else self._command(order))
        except PatrolError as problem:
            return bad(str(problem))
        except Exception as problem:  # ruff: ignore[BLE001] - whoever asked must learn of it, whatever it is
            return bad(f"{type(problem).__name__}: {problem}")

    def _command(self, order: Order) -> bytes:
        if self._answer is None:
            raise UsageProblem("takes no commands yet")
        return self._answer(order.name, order.body)

    def _file(self, order: Order) -> bytes:
        path = self._offers.get(order.name)
        if path is None:
            raise UsageProblem(f"does not offer {order.name!r}")
        wish: FileWish = read_wish(order.body)
        return answer_wish(path, wish)


class Workers:
    """A few threads that come when there is work, and hold nobody up: neither whoever hands them work, nor the end of the process."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._waiting: deque[Callable[[], None]] = deque()
        self._change = threading.Condition()
        self._threads = self._idle = 0
        self._stopped = False

    def hand(self, deed: Callable[[], None]) -> bool:
        """Have a deed done soon; False where too many wait, or after `stop`."""
        with self._change:
            if self._stopped or len(self._waiting) >= _WAITING_MOST:
                return False
            self._waiting.append(deed)
            if self._idle < len(self._waiting) and self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._change.notify()
        return True

    def stop(self) -> None:
        with self._change:
            self._stopped = True
            self._waiting.clear()
            self._change.notify_all()

    def _run(self) -> None:
        while True:
            with self._change:
                self._idle += 1
                self._change.wait_for(lambda: self._waiting or self._stopped)
                self._idle -= 1
                if self._stopped:
                    return
                deed = self._waiting.popleft()
            deed()
