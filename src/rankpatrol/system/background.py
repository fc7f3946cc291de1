"""Work that may hang with its file system, kept away from whoever must not wait: a thread that can be left behind."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar

from rankpatrol.core.records import Missing

T = TypeVar("T")
Deed = Callable[[], None]
# So often a thread that has nothing to do looks whether anybody has work for it still.
_OWNER_LOOK_S = 2.0
# A bundle is megabytes: a disk that is full is not written to each second.
_RETRY_S = 30.0


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
        self._learn = learn
        self._latest = first
        self._asked = threading.Event()
        self._round = threading.Condition()
        self._begun = self._done = 0
        threading.Thread(target=_go_round, args=(weakref.ref(self), self._asked, every_s), name=name, daemon=True).start()

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

    def go(self) -> None:
        """One round; its own thread calls this."""
        self._asked.clear()
        with self._round:
            self._begun += 1
        self._latest = self._learn()
        with self._round:
            self._done = self._begun
            self._round.notify_all()


def _go_round(owner: "weakref.ref[Rounds[Any]]", asked: threading.Event, every_s: float) -> None:
    """Until nobody has the rounds any more: a process that serves many jobs shall not keep a thread for each that is over."""
    while (rounds := owner()) is not None:
        rounds.go()
        del rounds
        asked.wait(every_s)


class Courier:
    """Carries things, in order, to a place that may be full or may hang. What cannot be carried is kept, and tried again."""

    def __init__(self, name: str, *, most: int = 10_000) -> None:
        self._load = _Load(most)
        threading.Thread(target=_carry_on, args=(weakref.ref(self), self._load), name=name, daemon=True).start()

    def send(self, deed: Deed, *, instead_of: str | None = None) -> None:
        """Have a deed done; never waits. It takes the place of an earlier one of the same name that has not begun, or has failed."""
        load = self._load
        with load.change:
            if instead_of is not None:
                load.waiting, load.refused = _without(load.waiting, instead_of), _without(load.refused, instead_of)
            load.waiting.append((instead_of, deed))
            load.change.notify_all()

    def waiting(self) -> int:
        """How many things have not been carried yet, with the one that is under way."""
        return len(self._load.waiting) + len(self._load.refused) + self._load.at_work

    def delivered(self, deadline_s: float) -> bool:
        """Try once more what was refused. True once all that was sent is done; False when the deadline passes first, or some is refused."""
        load = self._load
        with load.change:
            load.take_up_refused()
            load.change.notify_all()
            return load.change.wait_for(lambda: not load.waiting and not load.at_work, deadline_s) and not load.refused

    def trouble(self) -> str:
        """Why something could not be carried, of what failed last; an empty word where all that was tried is done."""
        return self._load.trouble if self._load.refused else ""


_Sent = deque[tuple[str | None, Deed]]


class _Load:
    """What a courier has to carry; it outlives the courier until all is carried."""

    def __init__(self, most: int) -> None:
        self.waiting: _Sent = deque(maxlen=most)
        self.refused: _Sent = deque(maxlen=most)
        self.trouble = ""
        self.change = threading.Condition()
        self.at_work = False
        self._refused_at_mono_s = 0.0

    def carry_one(self) -> bool:
        """Do the next thing; False where nothing waits."""
        with self.change:
            if not self.waiting:
                return False
            name, deed = self.waiting.popleft()
            self.at_work = True
        problem = _do(deed)
        with self.change:
            self.at_work = False
            if problem is not None:
                self._keep(name, deed, problem)
            elif time.monotonic() - self._refused_at_mono_s > _RETRY_S:  # there is room again, for this at least
                self.take_up_refused()
            self.change.notify_all()
        return True

    def take_up_refused(self) -> None:
        """In the order in which they were sent, before what came later."""
        self.waiting.extendleft(reversed(self.refused))
        self.refused.clear()

    def _keep(self, name: str | None, deed: Deed, problem: OSError) -> None:
        self._refused_at_mono_s = time.monotonic()
        self.trouble = problem.strerror or str(problem)
        if name is None or all(each != name for each, _ in self.waiting):
            self.refused.append((name, deed))


def _do(deed: Deed) -> OSError | None:
    try:
        deed()
    except OSError as problem:
        return problem
    return None


def _without(sent: _Sent, name: str) -> _Sent:
    return deque((item for item in sent if item[0] != name), maxlen=sent.maxlen)


def _carry_on(owner: "weakref.ref[Courier]", load: _Load) -> None:
    while load.carry_one() or owner() is not None:
        with load.change:
            if not load.waiting:
                load.change.wait(_OWNER_LOOK_S)
