"""What earlier scans saw, so that one glimpse proves nothing. Pure: `remember(history, scan)` gives the next history."""

from collections.abc import Mapping

from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.orphans.nvml_words import holders_of
from rankpatrol.orphans.records import GpuSeen, ProcessSeen, Scan


class Sight(Record, frozen=True, kw_only=True):
    """One process over the scans in a row that saw it. `home` and `devices` are the last ones: another home begins a new row.

    `blocked_scans` and `blocked_since_unix_s` count its scans in D in a row; `kill_pending_since_unix_s` is None where no SIGKILL waits.
    """

    scans: int = 1
    home: str = ""
    held_scans: int = 0
    blocked_scans: int = 0
    blocked_since_unix_s: float | None = None
    kill_pending_since_unix_s: float | None = None


class History(Record, frozen=True, kw_only=True):
    """Earlier scans, by process and by GPU. `ghost_memory` and `ghost_load` count scans in a row."""

    sights: Mapping[ProcessId, Sight] = {}
    ghost_memory: Mapping[int, int] = {}
    ghost_load: Mapping[int, int] = {}


NEVER = Sight(scans=0)


def remember(history: History, scan: Scan, *, idle_floor_bytes: int) -> History:
    """The history after one more scan. What it did not see is forgotten: sights count only in a row."""
    sights = {process.id: _sight(history.sights.get(process.id, NEVER), process, scan.at_unix_s) for process in scan.processes}
    gpus = () if isinstance(scan.gpus, Missing) else scan.gpus
    return History(
        sights=sights,
        ghost_memory={
            gpu.index: history.ghost_memory.get(gpu.index, 0) + 1 for gpu in gpus if has_ghost_memory(gpu, scan, idle_floor_bytes)
        },
        ghost_load={gpu.index: history.ghost_load.get(gpu.index, 0) + 1 for gpu in gpus if has_ghost_load(gpu, scan, idle_floor_bytes)},
    )


def _sight(before: Sight, process: ProcessSeen, at_unix_s: float) -> Sight:
    home = repr((process.home, process.tie))
    same = before.home == home
    blocked = is_blocked(process)
    holds = bool(process.devices) and not isinstance(process.devices, Missing)
    return Sight(
        scans=before.scans + 1 if same else 1,
        home=home,
        held_scans=(before.held_scans if same else 0) + 1 if holds else 0,
        blocked_scans=before.blocked_scans + 1 if blocked else 0,
        blocked_since_unix_s=_since(before.blocked_since_unix_s, at_unix_s) if blocked else None,
        kill_pending_since_unix_s=_since(before.kill_pending_since_unix_s, at_unix_s) if blocked and process.kill_pending else None,
    )


def _since(before_unix_s: float | None, at_unix_s: float) -> float:
    return at_unix_s if before_unix_s is None else before_unix_s


def is_blocked(process: ProcessSeen) -> bool:
    """True while any of its threads is in D: signals wait, and its memory may be locked."""
    return process.state == "D" or process.blocked_threads > 0


def has_ghost_memory(gpu: GpuSeen, scan: Scan, idle_floor_bytes: int) -> bool:
    """Memory in use that nobody holds: nobody's descriptor in all of /proc, and no living pid in NVML's list."""
    if isinstance(gpu.used_bytes, Missing) or gpu.used_bytes <= idle_floor_bytes or gpu.mig or scan.unseen or not scan.initial_namespace:
        return False
    named = () if isinstance(gpu.processes, Missing) else gpu.processes
    return not holders_of(gpu, scan) and not any(one.pid in scan.living for one in named)


def has_ghost_load(gpu: GpuSeen, scan: Scan, idle_floor_bytes: int) -> bool:
    """A busy counter that stands at its end while nothing is there: seen on Blackwell, and no orphan."""
    if isinstance(gpu.busy_percent, Missing) or isinstance(gpu.used_bytes, Missing) or scan.unseen or not scan.initial_namespace:
        return False
    return gpu.busy_percent >= 95 and gpu.used_bytes <= idle_floor_bytes and not holders_of(gpu, scan)
