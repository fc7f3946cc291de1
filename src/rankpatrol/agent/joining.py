"""Whether a rank is a member of a process group, seen from outside where that can be seen."""

from collections.abc import Iterable

from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Marks
from rankpatrol.discover.jobs import GROUP_THREADS


class Joining:
    """What an attempt's ranks have shown of it so far."""

    def __init__(self) -> None:
        self._shown: set[int] = set()

    def forget(self) -> None:
        """Another attempt."""
        self._shown.clear()

    def joined(self, rank: int, thread_names: Iterable[str], marks: Marks | Missing, *, steps_go_on: bool) -> bool:
        """By the threads of its group, from torch 2.5 on; else by its probe's phase; else by steps that any rank has counted.

        Before 2.5 no thread of a group has a name, and other backends than gloo's and nccl's have none in any version.
        """
        if not GROUP_THREADS.isdisjoint(thread_names):
            self._shown.add(rank)
            return True
        if rank in self._shown:
            return False  # it has left its group
        if isinstance(marks, Marks) and marks.phase != "initialisation":
            return marks.phase != "teardown"
        return steps_go_on
