"""Which attempt runs, with which ranks, and how they ended: read from the run directory each time."""

from pathlib import Path

from rankpatrol.agent.within import stacks_of
from rankpatrol.collect.ranks import RankRecord
from rankpatrol.core.records import ProcessId, Record
from rankpatrol.launch.rundir import RankExit, RankPlace, RunDir
from rankpatrol.system.process import boot_id, identify, is_hidden


class Attempt(Record, frozen=True, kw_only=True):
    """One attempt as its shims registered it."""

    number: int
    places: tuple[RankPlace, ...]
    exits: dict[int, RankExit]
    gone: frozenset[int]

    def world_size(self) -> int:
        return self.places[0].world_size if self.places else 0

    def complete(self) -> bool:
        """True when all its ranks have registered (those of other nodes are not expected here: one machine, for now)."""
        return bool(self.places) and len(self.places) >= self.world_size()

    def over(self) -> bool:
        """True when every rank that started has ended."""
        return bool(self.places) and all(place.rank in self.exits or place.rank in self.gone for place in self.places)

    def exit_statuses(self) -> dict[int, int | None]:
        """How each rank ended; None where its shim could not say, or where it runs still."""
        return {place.rank: self.exits[place.rank].exit_status if place.rank in self.exits else None for place in self.places}

    def records(self, job_dir: Path) -> tuple[RankRecord, ...]:
        """The ranks as the collectors want them."""
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
            for place in self.places
        )


def current_attempt(run_dir: RunDir) -> Attempt | None:
    """The newest attempt of which a shim has started, or None before the first."""
    claimed = run_dir.claimed_attempts()
    return read_attempt(run_dir, claimed[-1]) if claimed else None


def read_attempt(run_dir: RunDir, number: int) -> Attempt:
    """One attempt as it is now."""
    places = tuple(place for place in run_dir.places() if place.attempt == number)
    exits = {place.rank: seen for place in places if (seen := run_dir.exit_of(place)) is not None}
    gone = frozenset(place.rank for place in places if place.rank not in exits and not _lives(place.shim_pid, place.shim_start_ticks))
    return Attempt(number=number, places=places, exits=exits, gone=gone)


def _lives(pid: int, start_ticks: int) -> bool:
    seen = identify(pid)
    return is_hidden(pid) if seen is None else seen.start_ticks == start_ticks
