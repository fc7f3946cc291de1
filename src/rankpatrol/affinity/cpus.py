"""Sets of CPUs as the kernel writes them: `0-3,8` (cpuset(7), "List format")."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, Iterable, Set


# More than any kernel's NR_CPUS; a list that claims more is not one.
_MOST = 65536


def is_number(text: str) -> bool:
    """True for a number that is one of ranks, GPUs or CPUs: any user may write a page of digits into an environment."""
    return text.isdecimal() and text.isascii() and len(text) <= 9


def parse_cpus(text: str) -> FrozenSet[int]:
    """The numbers of a list such as `0-3,8`. Raises ValueError where it is none."""
    found: Set[int] = set()
    for part in text.strip().split(","):
        if not part.strip():
            continue
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high < _MOST:
            raise ValueError(f"{part!r} is no range of CPUs or nodes")
        found.update(range(low, high + 1))
    return frozenset(found)


def format_cpus(numbers: Iterable[int]) -> str:
    """The shortest list that names these numbers; `none` where there are none."""
    ordered = sorted(set(numbers))
    parts = []
    start = 0
    for at, number in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != number + 1:
            parts.append(str(number) if at == start else f"{ordered[start]}-{number}")
            start = at + 1
    return ",".join(parts) or "none"
