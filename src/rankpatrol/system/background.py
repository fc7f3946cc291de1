"""Work that may hang with its file system, kept away from whoever must not wait: a thread that can be left behind."""

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Generic, TypeVar

from rankpatrol.core.records import Missing

T = TypeVar("T")
Deed = Callable[[], None]


def within(work: Callable[[], T], deadline_s: float, *, name: str) -> T | Missing:
    """What `work` returns, or Missing once the deadline passes: its thread is left behind then. What it raises is raised here."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as problem:  # ruff: ignore[BLE001] - it belongs to whoever waits
            outcome.set_exception(problem)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return outcome.result(deadline_s)
    except FutureTimeout:
        if outcome.done():  # work itself ran out of some time of its own
            return outcome.result()
        return Missing(f"not done within {deadline_s:g} s")


class Rounds(Generic[T]):
    """Learns something every few seconds, and at once when asked. Whoever asks waits only as long as it wants to."""

    def __init__(self, learn: Callable[[], T], first: T, *, every_s: float, name: str) -> None:
        self._learn, self._every_s = learn, every_s
        self._latest = first
        self._asked = threading.Event()
        self._round = threading.Condition()
        self._begun = self._done = 0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def latest(self) -> T:
        """What was learned last, without waiting."""
        return self._latest

    def now(self, deadline_s: float) -> T:
        """The result of a round that began after this call; the last known one where the deadline passes first."""
        with self._round:
            # A round that has begun may have looked before we asked: the one after it has not.
            wanted = self._begun + 1
            self._asked.set()
            self._round.wait_for(lambda: self._done >= wanted, deadline_s)
        return self._latest

    def _run(self) -> None:
        while True:
            self._asked.clear()
            with self._round:
                self._begun += 1
            self._latest = self._learn()
            with self._round:
                self._done = self._begun
                self._round.notify_all()
            self._asked.wait(self._every_s)


class Courier:
    """Carries things, in order, to a place that may be full or may hang. What cannot be carried is tried again with the next thing."""

    def __init__(self, name: str, *, most: int = 10_000) -> None:
        self._waiting: deque[tuple[str | None, Deed]] = deque(maxlen=most)
        self._change = threading.Condition()
        self._at_work = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def send(self, deed: Deed, *, instead_of: str | None = None) -> None:
        """Have a deed done; never waits. It takes the place of an earlier one of the same name that has not begun."""
        with self._change:
            if instead_of is not None:
                self._waiting = deque((item for item in self._waiting if item[0] != instead_of), maxlen=self._waiting.maxlen)
            self._waiting.append((instead_of, deed))
            self._change.notify_all()

    def waiting(self) -> int:
        """How many things have not been carried yet, with the one that is under way."""
        return len(self._waiting) + self._at_work

    def delivered(self, deadline_s: float) -> bool:
        """True once all that was sent is done; False when the deadline passes first."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting and not self._at_work, deadline_s)

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: bool(self._waiting))
                _, deed = self._waiting.popleft()
                self._at_work = True
            with contextlib.suppress(OSError):  # a deed that must not be lost keeps what it could not do (journal.JsonLines)
                deed()
            with self._change:
                self._at_work = False
                self._change.notify_all()
