"""One rank at one moment: its process, all that descends from it or was left by it, and their stacks on demand."""

import signal
import time
from collections.abc import Sequence

import msgspec

from rankpatrol.collect.connections import connections_of
from rankpatrol.collect.processes import ProcessTree, descendants, sample_process
from rankpatrol.collect.stacks import may_be_told, take_stacks
from rankpatrol.collect.told_stacks import StackPipe, ask_stack
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import ProcessSample, RankSample, SocketBytes, Stack
from rankpatrol.system.process import identify

_TELLING_S = 1.0


class RankRecord(Record, frozen=True, kw_only=True):
    """One rank as its launcher reported it. `shim_pid` is 0 where it was started without a shim; a negative exit status is a signal."""

    rank: int
    local_rank: int
    node: str
    shim_pid: int
    process: ProcessId
    log_path: str
    exit_status: int | None = None
    ended_unix_s: float | None = None
    stacks: StackPipe | None = None


def observe(record: RankRecord, tree: ProcessTree, *, full: bool) -> RankSample:
    """The rank now; `full` lists open files too. Its descendants include what fell to its shim when their parent died."""
    return RankSample(
        rank=record.rank,
        local_rank=record.local_rank,
        node=record.node,
        shim_pid=record.shim_pid,
        pid=record.process.pid,
        exit_status=record.exit_status,
        ended_unix_s=record.ended_unix_s,
        process=_rank_process(record, full=full),
        descendants=_family(record, tree, full=full),
    )


def with_stacks(sample: RankSample, deadline_s: float, *, may_stop: bool = True, pipe: StackPipe | None = None) -> RankSample:
    """The same sample with the stacks of its process and of each descendant, all within `deadline_s`.

    What a tool cannot read is told by the rank itself, through `pipe`, within another second.
    """
    # One by one: `py-spy dump --subprocesses --json` prints the parent alone.
    alive = [child for child in sample.descendants if child.state != "Z"]
    wanted = [child.id for child in alive]
    if isinstance(sample.process, ProcessSample):
        wanted.insert(0, sample.process.id)
    taken = take_stacks(wanted, deadline_s=deadline_s, may_stop=may_stop)
    if pipe is not None:
        taken.update(_told(wanted, taken, pipe))
    reason = sample.process if isinstance(sample.process, Missing) else Missing(f"no stack of process {sample.pid} was taken")
    return msgspec.structs.replace(
        sample, stack=taken.get(sample.pid, reason), child_stacks={child.id.pid: taken[child.id.pid] for child in alive}
    )


def _told(wanted: Sequence[ProcessId], taken: dict[int, Stack | Missing], pipe: StackPipe) -> dict[int, Stack | Missing]:
    until = time.monotonic() + _TELLING_S
    found: dict[int, Stack | Missing] = {}
    for process in wanted:
        why = taken[process.pid]
        if isinstance(why, Stack) or not may_be_told(why) or time.monotonic() > until:
            continue
        told = ask_stack(process, pipe)
        found[process.pid] = told if isinstance(told, Stack) else Missing(f"{why.reason}; {told.reason}")
    return found


def with_connections(samples: Sequence[RankSample]) -> tuple[RankSample, ...]:
    """The same samples with the TCP connections of each process, all asked for at once."""
    processes = [child for sample in samples for child in sample.descendants]
    processes += [sample.process for sample in samples if isinstance(sample.process, ProcessSample)]
    found = connections_of(process.id.pid for process in processes)
    return tuple(_connected(sample, found) for sample in samples)


def _connected(sample: RankSample, found: dict[int, tuple[SocketBytes, ...] | Missing]) -> RankSample:
    children = tuple(msgspec.structs.replace(child, sockets=found[child.id.pid]) for child in sample.descendants)
    own = sample.process
    process = own if isinstance(own, Missing) else msgspec.structs.replace(own, sockets=found[own.id.pid])
    return msgspec.structs.replace(sample, process=process, descendants=children)


def _rank_process(record: RankRecord, *, full: bool) -> ProcessSample | Missing:
    if record.exit_status is not None:
        return Missing(f"rank {record.rank} {_say_end(record.exit_status)}")
    seen = sample_process(record.process.pid, with_files=full)
    if isinstance(seen, Missing) or seen.id == record.process:
        return seen
    return Missing(f"rank {record.rank} is gone: pid {record.process.pid} belongs to another process now")


def _say_end(exit_status: int) -> str:
    if exit_status >= 0:
        return f"ended with exit status {exit_status}"
    try:
        return f"was ended by {signal.Signals(-exit_status).name}"
    except ValueError:
        return f"was ended by signal {-exit_status}"


def _family(record: RankRecord, tree: ProcessTree, *, full: bool) -> tuple[ProcessSample, ...]:
    own = record.process.pid
    roots = {own} if identify(own) == record.process else set()
    if _is_shim(record):
        roots.add(record.shim_pid)
    pids = dict.fromkeys(pid for root in roots for pid in descendants(root, tree) if pid not in {own, *roots})
    parents = {*roots, *pids}
    samples = (sample_process(pid, with_files=full) for pid in pids)
    # A pid that went to a stranger since the tree was read has a parent outside the family.
    return tuple(sample for sample in samples if isinstance(sample, ProcessSample) and sample.parent_pid in parents)


def _is_shim(record: RankRecord) -> bool:
    """Whether the shim's pid is still the shim's: a shim started before its rank, and whoever wears its pid later started after it."""
    shim = identify(record.shim_pid) if record.shim_pid > 0 else None
    return shim is not None and shim.start_ticks <= record.process.start_ticks
