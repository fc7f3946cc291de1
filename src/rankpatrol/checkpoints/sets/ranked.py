"""Files that are numbered by rank, or as n of m: none may be missing between them, nor behind the last where the names tell how many."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from rankpatrol.checkpoints.report import lacking
from rankpatrol.checkpoints.sets.optimizer_steps import odd_optimizers
from rankpatrol.checkpoints.sets.view import Problem, SetView
from rankpatrol.core.records import Record

NAME = "ranked"
# Each with a group `number`; `count` where the name tells how many there are; whether every rank writes one.
_NUMBERED: Final = (
    (re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<between>-of-)(?P<count>\d+)(?P<after>.*)"), True),
    (re.compile(r"(?P<before>.*?world_size_)(?P<count>\d+)(?P<between>_rank_)(?P<number>\d+)(?P<after>.*)"), True),
    (re.compile(r"(?P<before>(?:.*[^a-z])?(?:rng_state_|random_states_))(?P<number>\d+)(?P<after>\D.*)"), True),
    (re.compile(r"(?P<before>(?:.*[^a-z])?rank[-_]?)(?P<number>\d+)(?P<after>\D.*)"), False),
)


class _Family(Record, frozen=True):
    """Names that differ in their number alone."""

    numbers: dict[int, str]
    count: int | None
    from_one: bool
    everybody: bool

    def wanted(self) -> range:
        """The numbers that should be there: all that the names tell of, else up to the last one seen."""
        first = 1 if self.from_one and 0 not in self.numbers else 0
        return range(first, max(self.numbers) + 1 if self.count is None else first + self.count)

    def missing(self) -> list[int]:
        """The numbers that should be there and are not; none where only some ranks write, such as one of each node or stage."""
        numbers = sorted(self.numbers)
        missing = [number for number in self.wanted() if number not in self.numbers]
        if self.everybody or not missing:
            return missing
        # LoRA names its files by a rank of another kind: 8, 16.
        strides = {after - before for before, after in pairwise(numbers)}
        ranks = numbers[0] in {0, 1} and len(missing) < len(numbers)
        return missing if ranks and not (len(numbers) > 2 and len(strides) == 1 and strides != {1}) else []


def matches(view: SetView) -> bool:
    """Two files that differ in their rank alone."""
    return any(len(family.numbers) > 1 or (family.count or 0) > 1 for family in _families(view.sizes))


def check(view: SetView) -> Iterator[Problem]:
    """Each number that is not there, and ranks' optimizers that do not stand at one step."""
    for name in missing_ranks(list(view.sizes)):
        yield view.problem(name, lacking("is not there, though others of its kind are"))
    for names in rank_families(list(view.sizes)):
        if "optim" in names[0]:
            yield from odd_optimizers(view, names)


def missing_ranks(names: list[str]) -> list[str]:
    """The names that numbered files call for and that are not among them."""
    return [_renumbered(family, number) for family in _families(names) for number in family.missing()]


def rank_families(names: list[str]) -> list[list[str]]:
    """Names that differ in their number alone, more than one of each."""
    return [list(family.numbers.values()) for family in _families(names) if len(family.numbers) > 1]


def _families(names: Iterable[str]) -> list[_Family]:
    """The numbered files, by what they have in common."""
    found: dict[tuple[str, ...], _Family] = {}
    for name in sorted(names):
        for pattern, everybody in _NUMBERED:
            match = pattern.fullmatch(name)
            if match is None:
                continue
            groups = match.groupdict()
            count = int(groups["count"]) if groups.get("count") else None
            key = (groups["before"], groups["after"], str(count))
            family = found.setdefault(key, _Family({}, count, groups.get("between") == "-of-", everybody))
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
