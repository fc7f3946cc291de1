"""Files that are numbered by rank, or as n of m: none may be missing between them, nor behind the last where the names tell how many."""

import re
from collections.abc import Iterator
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


def matches(view: SetView) -> bool:
    """Two files that differ in their rank alone."""
    return any(len(family.numbers) > 1 or (family.count or 0) > 1 for family in families(view))


def check(view: SetView) -> Iterator[Problem]:
    """Each number that is not there."""
    for family in families(view):
        last = max(family.numbers) if family.count is None else family.first + family.count - 1
        for number in range(family.first, last + 1):
            if number not in family.numbers:
                name = _renumbered(next(iter(family.numbers.values())), number)
                told = f"there are others up to {last}"
                yield view.problem(name, lacking(f"is not there, though {told}"))


def families(view: SetView) -> list[_Family]:
    """The numbered files, by what they have in common."""
    found: dict[tuple[str, ...], _Family] = {}
    for name in sorted(view.sizes):
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


def _renumbered(name: str, number: int) -> str:
    for pattern, _ in _NUMBERED:
        match = pattern.fullmatch(name)
        if match is not None:
            start, end = match.span("number")
            return f"{name[:start]}{number:0{end - start if name[start] == '0' else 0}d}{name[end:]}"
    return name
