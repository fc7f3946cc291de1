"""Which attempt runs, with which ranks, and how they ended: read from the run directory each time, and heard from other nodes."""

import operator
import time
from pathlib import Path

import msgspec

from rankpatrol.agent.nodes.others import Others
from rankpatrol.agent.nodes.wire import Part
from rankpatrol.agent.within import stacks_of
from rankpatrol.collect.ranks import RankRecord
from rankpatrol.core.records import ProcessId, Record
from rankpatrol.launch.rundir import RankExit, RankPlace, RunDir
from rankpatrol.system.process import boot_id, identify, is_hidden

_SEEN_S = 0.9


class Attempt(Record, frozen=True, kw_only=True):
    """One attempt as its shims registered it. `elsewhere` are the ranks on other nodes, `group` what all its ranks have in common."""

    number: int
    places: tuple[RankPlace, ...]
    exits: dict[int, RankExit]
    gone: frozenset[int]
    group: str | None = None
    elsewhere: frozenset[int] = frozenset()

    def here(self) -> tuple[RankPlace, ...]:
        """The ranks of this node."""
        return tuple(place for place in self.places if place.rank not in self.elsewhere)

    def world_size(self) -> int:
        return self.places[0].world_size if self.places else 0

    def complete(self) -> bool:
        """True when all its ranks have registered, on whatever node."""
        return bool(self.places) and len(self.places) >= self.world_size()

    def over(self) -> bool:
        """True when every rank that started has ended."""
        return bool(self.places) and all(place.rank in self.exits or place.rank in self.gone for place in self.places)

    def ended_well(self) -> bool:
        """True when all its ranks have ended with 0: where nobody is left to say how CMD ended, that does."""
        return self.complete() and set(self.exit_statuses().values()) == {0}

    def exit_statuses(self) -> dict[int, int | None]:
        """How each rank ended; None where its shim could not say, or where it runs still."""
        return {place.rank: self.exits[place.rank].exit_status if place.rank in self.exits else None for place in self.places}

    def records(self, job_dir: Path) -> tuple[RankRecord, ...]:
        """This node's ranks as the collectors want them."""
        return tuple(
            RankRecord(
                rank=place.rank,
                local_rank=place.local_rank,
                node=place.node,
                shim_pid=place.shim_pid,
                process=ProcessId(boot_id(), place.pid, place.start_ticks),
                log_path=str(job_dir / "attempts" / str(self.number) / f"rank{place.rank}.log"),
                exit_status=self.exits[place.rank].exit_status if place.rank in self.exits else None,
                ended_unix_s=self.exits[place.rank].ended_unix_s if place.rank in self.exits else None,
                stacks=stacks_of(place),
            )
            for place in self.here()
        )


class Roster:
    """The attempts of a job over all its nodes. They are counted by this node's shims; other nodes' parts belong by their group."""

    def __init__(self, run_dir: RunDir, others: Others) -> None:
        self._run_dir, self._others = run_dir, others
        self._shims = Shims()
        self._own: Attempt | None = None
        self._parts: tuple[Part, ...] = ()
        self._joined: Attempt | None = None

    def current(self) -> Attempt | None:
        """The newest attempt, or None before the first."""
        claimed = self._run_dir.claimed_attempts()
        return self.read(claimed[-1]) if claimed else None

    def read(self, number: int) -> Attempt:
        """One attempt as it is now."""
        own = msgspec.structs.replace(read_attempt(self._run_dir, number, self._shims), group=self._run_dir.group_of(number))
        parts = self._others.parts(own.group)
        whole = self._as_before(own, parts)
        if whole is None:
            whole = _joined(own, parts)
            self._own, self._parts, self._joined = own, parts, whole
        return _alone(whole) if self._others.cut_off() else whole

    def _as_before(self, own: Attempt, parts: tuple[Part, ...]) -> Attempt | None:
        """What was joined last, where it is made of the same: jobs have thousands of ranks, and seldom does one change."""
        same = len(parts) == len(self._parts) and all(map(operator.is_, parts, self._parts))
        return self._joined if same and own == self._own else None


def _alone(attempt: Attempt) -> Attempt:
    """As if this node's ranks were all."""
    places = tuple(msgspec.structs.replace(place, world_size=len(attempt.places)) for place in attempt.places)
    return msgspec.structs.replace(attempt, places=places)


def _joined(attempt: Attempt, parts: tuple[Part, ...]) -> Attempt:
    """Joined by the other nodes' parts; a rank that is known already stays where it is known."""
    places = {place.rank: place for place in attempt.places}
    exits, gone, elsewhere = dict(attempt.exits), set(attempt.gone), set[int]()
    for part in parts:
        new = {place.rank: place for place in part.places if place.rank not in places}
        places.update({rank: msgspec.structs.replace(place, attempt=attempt.number) for rank, place in new.items()})
        exits.update({rank: seen for rank, seen in part.exits.items() if rank in new})
        gone.update(rank for rank in part.gone if rank in new)
        elsewhere.update(new)
    return msgspec.structs.replace(
        attempt,
        places=tuple(places[rank] for rank in sorted(places)),
        exits=exits,
        gone=frozenset(gone),
        elsewhere=frozenset(elsewhere),
    )


def current_attempt(run_dir: RunDir) -> Attempt | None:
    """The newest attempt of which a shim has started, or None before the first."""
    claimed = run_dir.claimed_attempts()
    return read_attempt(run_dir, claimed[-1]) if claimed else None


class Shims:
    """Whether shims live. One that has just been seen to is not asked again in the same second: a patrol looks four times in it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], float] = {}

    def live(self, pid: int, start_ticks: int) -> bool:
        """Whether this very shim is there, or was within the last second."""
        now_s, shim = time.monotonic(), (pid, start_ticks)
        if now_s - self._seen.get(shim, float("-inf")) < _SEEN_S:
            return True
        seen = identify(pid)
        lives = is_hidden(pid) if seen is None else seen.start_ticks == start_ticks
        if lives:
            self._seen[shim] = now_s
        return lives


def read_attempt(run_dir: RunDir, number: int, shims: Shims | None = None) -> Attempt:
    """One attempt as it is now."""
    shims = shims or Shims()
    places = tuple(place for place in run_dir.places() if place.attempt == number)
    exits = run_dir.exits(places)
    gone = frozenset(place.rank for place in places if place.rank not in exits and not shims.live(place.shim_pid, place.shim_start_ticks))
    return Attempt(number=number, places=places, exits=exits, gone=gone)
