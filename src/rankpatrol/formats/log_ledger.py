"""Keeps what a job's logs state, in flat memory: the first and the last of each kind a writer, and how often."""

from collections.abc import Iterable, Iterator

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind, Stamp

# Beyond this many different statements only those of new kinds are kept.
_MOST_KEYS = 60_000
_MOST_RAISES = 1000
_RESTARTS = frozenset({"starting", "loading", "loaded"})
_FIRST_MARKS, _LAST_MARKS = 64, 256
# What makes two statements different; all other values are how they happen to run.
_TELLS_APART = (
    "rank",
    "ranks",
    "pid",
    "host",
    "component",
    "seq",
    "op",
    "xid",
    "group",
    "group_rank",
    "by",
    "from",
    "one",
    "two",
    "message",
    "gpu",
    "pci",
    "batches",
    "name",
    "device",
    "signal",
    "code",
    "now",
    "n",
    "text",
)

_STATE = ("done", "total", "percent", "count")

_Key = tuple[object, ...]


class Told(Record, frozen=True):
    """One statement, as it was made first and last, and how often. `since` is the first of the last ones that show the same state."""

    first: Fact
    last: Fact
    count: int
    since: Fact


class Mark(Record, frozen=True):
    """A counter's value: the step, when, where in all that was read, and what the line itself states of time.

    `step_s` is what a step takes, `elapsed_s` how long ago the bar began.
    """

    step: int
    at: Stamp | None
    order: int
    step_s: float | None
    elapsed_s: float | None = None


class Counter(msgspec.Struct):
    """The marks of one writer's counter, the first and the last of them."""

    strength: int
    first: list[Mark]
    last: list[Mark]
    count: int = 0

    def add(self, mark: Mark) -> None:
        """Take one more mark."""
        self.count += 1
        if len(self.first) < _FIRST_MARKS:
            self.first.append(mark)
            return
        self.last.append(mark)
        if len(self.last) > 2 * _LAST_MARKS:
            del self.last[:_LAST_MARKS]

    def marks(self) -> list[Mark]:
        """All that is kept, in order."""
        return [*self.first, *self.last]


class Raise(Record, frozen=True):
    """One time that an exception was seen: the step before it, and how many counter lines and restarts lay before."""

    fact: Fact
    after_step: int | None
    counted: int
    restarts: int


class Ledger:
    """Takes facts, and gives back few."""

    def __init__(self) -> None:
        self.raises: list[Raise] = []
        self._step: int | None = None
        self._progress = self._restarts = 0
        self._told: dict[_Key, Told] = {}
        self.counters: dict[_Key, Counter] = {}
        self.last_seen: dict[_Key, Fact] = {}

    def take(self, facts: Iterable[Fact]) -> None:
        """Take facts in the order in which they were read."""
        for fact in facts:
            if fact.kind is Kind.PROGRESS:
                self._count(fact)
                self._step, self._progress = int(fact.values["step"]), self._progress + 1
            elif fact.kind is Kind.RAISED and len(self.raises) < _MOST_RAISES:
                self.raises.append(Raise(fact, self._step, self._progress, self._restarts))
            elif fact.kind is Kind.EXITED or fact.word in _RESTARTS:
                self._restarts += 1
            if fact.kind is not Kind.PULSE and (fact.at is not None or fact.teller.rank is not None):
                self._seen(fact)
            if fact.word != "other_line":
                self._keep(fact)

    def told(self, *kinds: Kind) -> Iterator[Told]:
        """All statements of some kinds, in the order in which they were first made."""
        found = [told for told in self._told.values() if told.first.kind in kinds]
        return iter(sorted(found, key=lambda told: told.first.order))

    def _keep(self, fact: Fact) -> None:
        key = _key(fact)
        if (known := self._told.get(key)) is not None:
            alike = fact.kind is Kind.PHASE and _state(known.last) == _state(fact)
            self._told[key] = Told(known.first, fact, known.count + 1, known.since if alike else fact)
        elif len(self._told) < _MOST_KEYS:
            self._told[key] = Told(fact, fact, 1, fact)

    def _count(self, fact: Fact) -> None:
        key = _teller_key(fact)
        strength = int(fact.values["strength"])
        counter = self.counters.get(key)
        if counter is None or counter.strength < strength:
            if len(self.counters) >= _MOST_KEYS:
                return
            counter = self.counters[key] = Counter(strength, [], [])
        if counter.strength == strength:
            counter.add(Mark(int(fact.values["step"]), fact.at, fact.order, fact.number("step_s"), fact.number("elapsed_s")))

    def _seen(self, fact: Fact) -> None:
        key = _teller_key(fact)
        if key in self.last_seen or len(self.last_seen) < _MOST_KEYS:
            self.last_seen[key] = fact


def _teller_key(fact: Fact) -> _Key:
    teller = fact.teller
    if teller.rank is not None:
        return ("rank", teller.rank)
    return ("local", teller.host, teller.local_rank, teller.component, teller.pid)


def _key(fact: Fact) -> _Key:
    if fact.kind in {Kind.PROGRESS, Kind.PULSE}:
        return (fact.kind, fact.word, _teller_key(fact))
    return (fact.kind, fact.word, _teller_key(fact), *(fact.values.get(name) for name in _TELLS_APART))


def _state(fact: Fact) -> tuple[str | None, ...]:
    """How far a phase is."""
    return tuple(fact.values.get(name) for name in _STATE)
