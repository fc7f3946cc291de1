"""Which rank timed out in which collective of which group. A rank inside a group is never taken for a global one."""

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Fact, Kind
from rankpatrol.formats.log_ledger import Ledger

_DEFAULT_GROUPS = frozenset({None, "0", "default_pg", ""})
# A rank's number in the group differs from its global one: a group of some ranks, which one is not said.
_SOME_SUBGROUP = "?"


class Wait(Record, frozen=True, kw_only=True):
    """A collective that ran into its time-out on one rank. `rank` is global, or None where only the rank inside a group is known."""

    rank: int | None
    group: str | None
    group_rank: int | None
    sequence: int | None
    operation: str
    numel: tuple[str | None, str | None]
    timeout_s: float | None
    ran_s: float | None
    fact: Fact

    def in_default_group(self) -> bool:
        """Of all ranks, as far as the lines say."""
        return self.group in _DEFAULT_GROUPS


class Status(Record, frozen=True, kw_only=True):
    """How far a rank says that it is in a group: the sequences of its last enqueued and its last completed collective."""

    rank: int | None
    group: str | None
    enqueued: int
    completed: int
    fact: Fact


def waits_of(ledger: Ledger) -> list[Wait]:
    """All time-outs, one a rank and collective."""
    groups = _groups_by_status(ledger)
    found: dict[tuple[object, ...], Wait] = {}
    for told in ledger.told(Kind.TIMED_OUT):
        wait = _wait(told.first, groups)
        known = found.setdefault((wait.rank, wait.group_rank, wait.sequence, wait.operation), wait)
        if known.group is None and wait.group is not None:
            found[wait.rank, wait.group_rank, wait.sequence, wait.operation] = wait
    return list(found.values())


def statuses_of(ledger: Ledger) -> list[Status]:
    """What the ranks say of how far they are; the last word of each."""
    found = []
    for told in ledger.told(Kind.STATUS):
        fact = told.last
        enqueued, completed = fact.number("enqueued"), fact.number("completed")
        if enqueued is not None and completed is not None:
            group = _group(fact)
            found.append(Status(rank=_global(fact, group), group=group, enqueued=int(enqueued), completed=int(completed), fact=fact))
    return found


def _groups_by_status(ledger: Ledger) -> dict[tuple[int | None, str | None], str | None]:
    """The group of (rank, sequence), which only the status line beside a time-out names."""
    return {
        (told.first.teller.rank, told.first.values.get("seq")): _group(told.first)
        for told in ledger.told(Kind.STATUS)
        if told.first.values.get("seq")
    }


def _wait(fact: Fact, groups: dict[tuple[int | None, str | None], str | None]) -> Wait:
    group = _group(fact)
    if group is None:
        group = groups.get((fact.teller.rank, fact.values.get("seq")))
    sequence = fact.number("seq")
    timeout_ms, ran_ms = fact.number("timeout_ms"), fact.number("ran_ms")
    inside = fact.number("group_rank")
    if group is None and inside is not None and fact.teller.rank is not None and int(inside) != fact.teller.rank:
        group = _SOME_SUBGROUP
    return Wait(
        rank=_global(fact, group),
        group=group,
        group_rank=int(inside) if inside is not None else None,
        sequence=int(sequence) if sequence is not None else None,
        operation=fact.values.get("op", "?"),
        numel=(fact.values.get("numel_in", fact.values.get("shape")), fact.values.get("numel_out")),
        timeout_s=timeout_ms / 1000 if timeout_ms is not None else None,
        ran_s=ran_ms / 1000 if ran_ms is not None else None,
        fact=fact,
    )


def _group(fact: Fact) -> str | None:
    name = fact.values.get("group_name")
    return "0" if name == "default_pg" else fact.values.get("group")


def _global(fact: Fact, group: str | None) -> int | None:
    """The writer's global rank. Where the line's own number differs in the group of all, the process is in two worlds: then nobody."""
    inside = fact.number("group_rank")
    if fact.teller.rank is not None:
        if fact.teller.component is not None and inside is not None and int(inside) != fact.teller.rank:
            return None
        return fact.teller.rank
    if group in _DEFAULT_GROUPS and inside is not None and fact.teller.component is None:
        return int(inside)
    return None
