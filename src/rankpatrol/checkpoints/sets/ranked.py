"""Files that are numbered by rank, or as n of m: none may be missing between them, nor behind the last where the names tell how many."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from rankpatrol.checkpoints.report import lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView
from rankpatrol.core.records import Record

NAME = "ranked"
# Each with a group `number`; `count` where the name tells how many there are; the first number.
_NUMBERED: Final = (
    (re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<between>-of-)(?P<count>\d+)(?P<after>.*)"), 1),
    (re.compile(r"(?P<before>.*?world_size_)(?P<count>\d+)(?P<between>_rank_)(?P<number>\d+)(?P<after>.*)"), 0),
    (re.compile(r"(?P<before>(?:.*[^a-z])?(?:rng_state_|random_states_|rank[-_]?))(?P<number>\d+)(?P<after>\D.*)"), 0),
)


class _Family(Record, frozen=True):
    """Names that differ in their number alone."""

    numbers: dict[int, str]
    first: int
    count: int | None

    def wanted(self) -> range:
        """The numbers that should be there: all that the names tell of, else up to the last one seen."""
        return range(self.first, max(self.numbers) + 1 if self.count is None else self.first + self.count)


def matches(view: SetView) -> bool:
    """Two files that differ in their rank alone."""
    return any(len(family.numbers) > 1 or (family.count or 0) > 1 for family in _families(view.sizes))


def check(view: SetView) -> Iterator[Problem]:
    """Each number that is not there."""
    for name in missing_ranks(list(view.sizes)):
        yield view.problem(name, lacking("is not there, though others of its kind are"))


def missing_ranks(names: list[str]) -> list[str]:
    """The names that numbered files call for and that are not among them."""
    return [_renumbered(family, number) for family in _families(names) for number in family.wanted() if number not in family.numbers]


def rank_families(names: list[str]) -> list[list[str]]:
    """Names that differ in their number alone, more than one of each."""
    return [list(family.numbers.values()) for family in _families(names) if len(family.numbers) > 1]


def _families(names: Iterable[str]) -> list[_Family]:
    """The numbered files, by what they have in common."""
    found: dict[tuple[str, ...], _Family] = {}
    for name in sorted(names):
        for pattern, first in _NUMBERED:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            groups = match.groupdict()
            count = int(groups["count"]) if groups.get("count") else None
            key = (groups["before"], groups["after"], str(count))
            family = found.setdefault(key, _Family({}, first, count))
            if int(groups["number"]) < 1 << 20:
                family.numbers[int(groups["number"])] = name
            break
    return [family for family in found.values() if family.numbers and (family.count or 0) < 1 << 20]


def _renumbered(family: _Family, number: int) -> str:
    name = next(iter(family.numbers.values()))
    match = next(match for pattern, _ in _NUMBERED if (match := pattern.fullmatch(name)))
    start, end = match.span("number")
    width = end - start if name[start] == "0" else 0
    return f"{name[:start]}{number:0{width}d}{name[end:]}"
