"""Snapshots for tests: recorded ones of real ranks (data/stacks), and hand-made ones with one thing changed."""

import functools
import json
from pathlib import Path
from typing import Any

from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import Frame, IoCounters, ProcessSample, RankSample, Snapshot, Stack, SystemCall, ThreadStack

STACKS = Path(__file__).parent / "data" / "stacks"
FUTEX = SystemCall("futex")
SCENARIOS = tuple(sorted(path.stem for path in STACKS.glob("*.json")))


def process(
    pid: int,
    *,
    name: str = "python3",
    state: str = "S",
    call: SystemCall | Missing = FUTEX,
    ticks: int = 0,
    threads: tuple[str, ...] = (),
    **facts: Any,
) -> ProcessSample:
    """A process that sleeps in a futex and has done nothing, but for what is said."""
    plain: dict[str, Any] = {
        "id": ProcessId("boot", pid, 100 + pid),
        "parent_pid": 1,
        "name": name,
        "command": ("python", "train.py"),
        "state": state,
        "tracer_pid": 0,
        "wait_channel": "futex_do_wait",
        "system_call": call,
        "cpu_ticks": ticks,
        "main_thread_ticks": ticks,
        "voluntary_switches": 0,
        "involuntary_switches": 0,
        "minor_faults": 0,
        "major_faults": 0,
        "resident_bytes": 1 << 28,
        "io": IoCounters(0, 0, 0, 0),
        "open_files": Missing("files were not listed in this round"),
        "thread_names": (name, *threads),
    }
    return ProcessSample(**{**plain, **facts})


def stack(pid: int, *frames: tuple[str, str, int], owns_gil: bool = False) -> Stack:
    """The main thread's stack, innermost first, of (function, file, line)."""
    thread = ThreadStack(thread_id=pid, name="MainThread", active=False, owns_gil=owns_gil, frames=tuple(Frame(*frame) for frame in frames))
    return Stack(pid, (thread,))


def rank(
    number: int, seen: ProcessSample | Missing, its_stack: Stack | Missing, *children: tuple[ProcessSample, Stack | Missing]
) -> RankSample:
    """One rank with its loader processes."""
    return RankSample(
        rank=number,
        local_rank=number,
        node="n1",
        shim_pid=1,
        pid=seen.id.pid if isinstance(seen, ProcessSample) else 0,
        process=seen,
        descendants=tuple(child for child, _ in children),
        stack=its_stack,
        child_stacks={child.id.pid: child_stack for child, child_stack in children},
    )


def snapshot(*ranks: RankSample, at_s: float = 1000.0, world_size: int | None = None) -> Snapshot:
    """All ranks at one moment."""
    return Snapshot(job="job", attempt=0, at_mono_s=at_s, at_unix_s=1.8e9 + at_s, world_size=world_size or len(ranks), ranks=tuple(ranks))


@functools.cache
def recorded(scenario: str) -> Snapshot:
    """Four real gloo ranks of torch 2.13, taken while they were in this situation."""
    return snapshot(*(_recorded_rank(row) for row in json.loads((STACKS / f"{scenario}.json").read_text())))


def _recorded_rank(row: dict[str, Any]) -> RankSample:
    own = _recorded_process(row["process"])
    threads = tuple(
        ThreadStack(
            thread_id=each["thread_id"],
            name=each["name"],
            active=each["active"],
            owns_gil=each["owns_gil"],
            frames=tuple(Frame(*frame) for frame in each["frames"]),
        )
        for each in row["stack"]
    )
    taken: Stack | Missing = Stack(own.id.pid, threads) if threads else Missing("py-spy gave nothing")
    children = [(_recorded_process(child), Missing("not recorded")) for child in row["children"]]
    return rank(row["rank"], own, taken, *children)


def _recorded_process(row: dict[str, Any]) -> ProcessSample:
    return process(
        row["pid"],
        name=row["name"],
        state=row["state"],
        call=SystemCall(row["call"]["name"], tuple(row["call"].get("arguments", ()))),
        ticks=row["main_thread_ticks"],
        threads=tuple(row["thread_names"]),
        wait_channel=row["wait_channel"],
        cpu_ticks=row["cpu_ticks"],
        parent_pid=row["parent_pid"],
    )
