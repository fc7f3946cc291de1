"""Finds the ranks in a tree of processes that nobody registered, by what their launchers told them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rankpatrol.collect.candidates import candidates
from rankpatrol.collect.processes import ProcessTree, descendants, process_tree
from rankpatrol.collect.ranks import RankRecord
from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.core.records import Missing, Record
from rankpatrol.discover.jobs import VARIABLES
from rankpatrol.discover.records import Candidate
from rankpatrol.launch.rundir import SHIM_FOLDER
from rankpatrol.launch.shim.naming import node_name
from rankpatrol.launch.shim.placing import LAUNCHERS, TORCHRUN, Place, place_of
from rankpatrol.system.process import identify, is_hidden

# Whatever they are called: a rank may have given itself a title.
_ANY_NAME = ("",)


class FoundRanks(Record, frozen=True, kw_only=True):
    """The ranks of one process tree. `guessed`: pids of which nobody told the rank; they are numbered behind the others."""

    records: tuple[RankRecord, ...]
    world_size: int
    guessed: tuple[int, ...] = ()


def find_ranks(root: int) -> FoundRanks:
    """The ranks at or below this process. Raises BadInput where there is no such process, NoPermission where it is hidden from us."""
    if identify(root) is None:
        raise _not_seen(root)
    tree = _Tree(root)
    told = {found.pid: found for found in tree.ranks(root, None, 0)} or {root: _Found(root, None, 0)}
    places = {pid: found.place for pid, found in told.items() if found.place is not None and _is_first(found, told)}
    guessed = tuple(pid for pid, found in told.items() if found.place is None)
    next_rank = 1 + max((place.rank for place in places.values()), default=-1)
    numbered = {pid: (place.rank, place.local_rank) for pid, place in places.items()}
    numbered |= {pid: (next_rank + index, next_rank + index) for index, pid in enumerate(guessed)}
    records = [record for pid, number in numbered.items() if (record := _record(told[pid], tree.seen.get(pid), *number)) is not None]
    size = max([place.world_size for place in places.values()], default=0)
    return FoundRanks(records=tuple(sorted(records, key=lambda each: each.rank)), world_size=max(size, len(records)), guessed=guessed)


class _Found(NamedTuple):
    """One rank's process, its place where anybody told it, and its shim (0: none)."""

    pid: int
    place: Place | None
    shim: int


class _Tree:
    """One process tree, each process as the watch of running jobs would see it."""

    def __init__(self, root: int) -> None:
        self._tree: ProcessTree = process_tree()
        among = (root, *descendants(root, self._tree))
        self.seen: dict[int, Candidate] = {each.id.pid: each for each in candidates(VARIABLES, _ANY_NAME, among)}
        # srun torchrun: torchrun itself is a task of Slurm's, and its children are the ranks.
        under_torchrun = any(place_of(self._environment(pid), (TORCHRUN,)) for pid in self.seen)
        self._launchers = (TORCHRUN,) if under_torchrun else LAUNCHERS

    def ranks(self, pid: int, parents: Mapping[str, str] | None, shim: int) -> Iterator[_Found]:
        """Down from `pid`, and no further below a rank: what is there is its own. A shim's rank is the shim's child."""
        environment = self._environment(pid)
        if self._is_shim(pid):
            for child in self._tree.get(pid, ()):
                yield from self.ranks(child, environment, pid)
            return
        # A rank that sets its title may have written over its environment (setproctitle): then its shim's word counts.
        place = place_of(environment, self._launchers) or (place_of(parents, self._launchers) if parents else None)
        if shim or (place is not None and self._is_program(pid)):
            yield _Found(pid, place, shim)
            return
        for child in self._tree.get(pid, ()):
            yield from self.ranks(child, environment, 0)

    def _environment(self, pid: int) -> Mapping[str, str]:
        seen = self.seen.get(pid)
        return {} if seen is None or isinstance(seen.environment, Missing) else seen.environment

    def _is_shim(self, pid: int) -> bool:
        """`python -I -S …/rankpatrol/launch/shim LAUNCHER …`, as python-shim and `rankpatrol shim` start it."""
        seen = self.seen.get(pid)
        words = () if seen is None or isinstance(seen.command, Missing) else seen.command
        return words[1:3] == ("-I", "-S") and len(words) > 3 and words[3].endswith(SHIM_FOLDER)

    def _is_program(self, pid: int) -> bool:
        """False for a shell around the Python that trains."""
        return _runs_python(pid) or not any(_runs_python(child) for child in descendants(pid, self._tree))


def _is_first(found: _Found, told: Mapping[int, _Found]) -> bool:
    """Two processes with one rank (a wrapper's leftovers): the one that was found first, nearest to the launcher, is the rank."""
    rank = found.place.rank if found.place else None
    return next(each.pid for each in told.values() if each.place is not None and each.place.rank == rank) == found.pid


def _record(found: _Found, seen: Candidate | None, rank: int, local_rank: int) -> RankRecord | None:
    process = identify(found.pid) if seen is None else seen.id
    if process is None:
        return None
    log_path = "" if seen is None else seen.log_path or ""
    node = node_name()
    return RankRecord(rank=rank, local_rank=local_rank, node=node, shim_pid=found.shim, process=process, log_path=log_path)


def _runs_python(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return False
    return name.startswith(("python", "pypy"))


def _not_seen(pid: int) -> BadInput | NoPermission:
    if is_hidden(pid):
        return NoPermission(
            f"process {pid} is there, and hidden from this user (/proc is mounted with hidepid)",
            help="Nothing was captured. Run it as that process's user, or as root.",
        )
    return BadInput(f"there is no process {pid}", help="`ps -ef | grep torchrun` finds the launcher; its children are captured with it.")
