"""How processes ended, out of what launchers, schedulers, the kernel and the processes themselves say: one record an end."""

import re
from collections.abc import Iterator

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind
from rankpatrol.formats.log_ledger import Ledger

_NAMES = {
    "segmentation fault": 11, "aborted": 6, "bus error": 7, "killed": 9, "floating point exception": 8, "illegal instruction": 4,
    "terminated": 15, "out of memory": 9,
}  # fmt: skip
_NUMBERS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGILL": 4,
    "SIGABRT": 6,
    "SIGBUS": 7,
    "SIGFPE": 8,
    "SIGKILL": 9,
    "SIGSEGV": 11,
    "SIGTERM": 15,
}
# What a launcher or a C++ abort does to the others: never a first cause by itself.
STOPPED = frozenset({15, 2, 1})
# Of these an outer process speaks; the child is meant.
_OF_A_LAUNCHER = frozenset({"launcher_signalled"})


class End(Record, frozen=True, kw_only=True):
    """One process's end. `signal` is a number; `first` is the launcher's own word that it was the first."""

    rank: int | None
    local_rank: int | None
    host: str | None
    pid: int | None
    code: int | None
    signal: int | None
    first: bool
    fact: Fact

    def by_itself(self) -> bool:
        """False for what a launcher stopped because another one had failed."""
        return self.signal not in STOPPED


def ends_of(ledger: Ledger) -> list[End]:
    """All ends, the launcher's table first put together; what two lines say of one process is one end."""
    facts = [told.first for told in ledger.told(Kind.EXITED, Kind.SIGNALLED) if told.first.word not in _OF_A_LAUNCHER]
    found = [*_table(facts), *(end for fact in facts if not fact.word.startswith("row_") for end in _single(fact))]
    return _merged(sorted(found, key=lambda end: end.fact.order))


def _table(facts: list[Fact]) -> Iterator[End]:
    """Torchelastic's table of failures: rank, exit code and signal stand on lines of their own."""
    row: dict[str, str] = {}
    begun: Fact | None = None
    first = False
    for fact in facts:
        match fact.word:
            case "row_first":
                first = True
            case "row_rest":
                first = False
            case "row_rank":
                if begun is not None:
                    yield _end(begun, row, first=row["first"] == "1")
                begun, row = fact, dict(fact.values) | {"first": str(int(first))}
            case "row_code" | "row_signal" | "row_host" if begun is not None:
                row |= {key: value for key, value in fact.values.items() if key not in row}
            case _:
                pass
    if begun is not None:
        yield _end(begun, row, first=row["first"] == "1")


def _single(fact: Fact) -> Iterator[End]:
    ranks = _ranks(fact.values.get("ranks", ""))
    if not ranks:
        yield _end(fact, fact.values, first=False)
    for rank in ranks:
        yield _end(fact, fact.values | {"rank": str(rank)}, first=False)


def _end(fact: Fact, values: dict[str, str], *, first: bool) -> End:
    code = _int(values.get("code"))
    signal = _signal(values, code)
    rank = _int(values.get("rank"))
    return End(
        rank=rank if rank is not None else fact.teller.rank,
        local_rank=_int(values.get("local", values.get("local_rank"))) if rank is None else None,
        host=values.get("host", fact.teller.host),
        pid=_int(values.get("pid")) or fact.teller.pid,
        code=code,
        signal=signal,
        first=first,
        fact=fact,
    )


def _signal(values: dict[str, str], code: int | None) -> int | None:
    if words := values.get("signal_words"):
        return _NAMES.get(words.strip().lower())
    if name := values.get("signal"):
        return _int(name) or _NUMBERS.get(name)
    if number := values.get("signal_number"):
        return _int(number)
    if code is not None and (code < 0 or 128 < code < 160):
        return -code if code < 0 else code - 128
    return None


def _merged(ends: list[End]) -> list[End]:
    """One end a process: the same pid, or the same rank."""
    kept: list[End] = []
    for end in ends:
        for at, known in enumerate(kept):
            if _same(known, end):
                kept[at] = _both(known, end)
                break
        else:
            kept.append(end)
    return kept


def _same(one: End, two: End) -> bool:
    if one.pid is not None and two.pid is not None:
        return one.pid == two.pid
    return one.rank is not None and one.rank == two.rank


def _both(one: End, two: End) -> End:
    return End(
        rank=one.rank if one.rank is not None else two.rank,
        local_rank=one.local_rank if one.local_rank is not None else two.local_rank,
        host=one.host or two.host,
        pid=one.pid or two.pid,
        code=one.code if one.code is not None else two.code,
        signal=one.signal or two.signal,
        first=one.first or two.first,
        fact=one.fact,
    )


def _ranks(text: str) -> list[int]:
    """`3`, `0-2,5` as numbers; at most what a job has."""
    found: list[int] = []
    for part in re.findall(r"\d+(?:-\d+)?", text):
        begin, _, end = part.partition("-")
        found += range(int(begin), min(int(end or begin), int(begin) + 100_000) + 1)
    return found


def ranks_in(text: str) -> tuple[int, ...]:
    """The ranks that a list such as `3, 5` or `0-2,5` names."""
    return tuple(sorted(set(_ranks(text))))


def _int(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None
