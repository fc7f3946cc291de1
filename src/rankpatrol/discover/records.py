"""What is seen of processes, and the jobs that they turn out to be."""

import msgspec

from rankpatrol.core.records import Missing, ProcessId, Record


class Candidate(Record, frozen=True, kw_only=True):
    """One process that may be a rank. `environment` holds launchers' variables only; `log_path` is the file that its output goes to."""

    id: ProcessId
    parent_pid: int
    uid: int
    name: str
    command: tuple[str, ...] | Missing
    environment: dict[str, str] | Missing
    thread_names: frozenset[str]
    cgroup: str | Missing = Missing("not read")
    log_path: str | None = None


class FoundRank(Record, frozen=True, kw_only=True):
    """One rank of a job, and which variable said so."""

    rank: int
    local_rank: int
    world_size: int
    process: ProcessId
    told_by: str
    log_path: str | None = None


class FoundJob(Record, frozen=True, kw_only=True):
    """One job's part on this node. `launcher` is the process above its ranks, None where that is no launcher that is known.

    `patrolled_by` is the run directory of a `rankpatrol run` that watches it already. `shared_key` names the job on each of its nodes, and
    `together` is what ranks that were started together have in common.
    """

    key: str
    name: str
    uid: int
    launcher: ProcessId | None
    ranks: tuple[FoundRank, ...]
    patrolled_by: str | None = None
    shared_key: str = ""
    together: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return max(rank.world_size for rank in self.ranks)


class Unnumbered(Record, frozen=True, kw_only=True):
    """A process of a torch job whose rank cannot be known, and why."""

    process: ProcessId
    name: str
    why: str


class Survey(Record, frozen=True, kw_only=True):
    """All that one look over the node's processes found."""

    jobs: tuple[FoundJob, ...]
    unnumbered: tuple[Unnumbered, ...]
