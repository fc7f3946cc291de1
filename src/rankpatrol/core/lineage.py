"""Who stands above a process."""

from collections.abc import Mapping


def above(pid: int, parents: Mapping[int, int]) -> tuple[int, ...]:
    """All that are above a process, nearest first, init too: in a container that may be the launcher, or a rank.

    A table read while processes come and go may hold a circle.
    """
    found: dict[int, None] = {}
    while (pid := parents.get(pid, 0)) and pid not in found:
        found[pid] = None
    return tuple(found)
