"""The processes of one rank, found by what the training itself looks like: never by what the patrol says."""

from collections.abc import Iterator
from pathlib import Path

from rankpatrol.core.records import ProcessId
from rankpatrol.drill.family import descendants
from rankpatrol.system.process import identify, read_stat, stat_fields

_LOADER_NAME = "pt_data_worker"  # set by torch.utils.data's workers themselves


def loader_processes(keeper_pid: int, rank: int) -> list[ProcessId]:
    """The rank's living loader processes below the keeper."""
    return list(_loaders(keeper_pid, rank))


def rank_process(keeper_pid: int, rank: int) -> ProcessId | None:
    """The rank itself: the parent of its loader processes, which no wrapper above it is. None where it has none yet."""
    for loader in _loaders(keeper_pid, rank):
        try:
            parent = _parent_pid(loader.pid)
        except (OSError, ValueError):
            continue
        return identify(parent)
    return None


def _loaders(keeper_pid: int, rank: int) -> Iterator[ProcessId]:
    for process in descendants(keeper_pid):
        folder = Path(f"/proc/{process.pid}")
        try:
            name = (folder / "comm").read_text().strip()
            is_loader = name == _LOADER_NAME or (name.startswith("python") and _is_fork(process.pid))
            if is_loader and f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield process
        except (OSError, ValueError):
            continue


def _is_fork(pid: int) -> bool:
    """Before torch 2.5 a loader process has no name of its own: it has its rank's command line, as no wrapper above a rank has."""
    own, parents = (Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, _parent_pid(pid)))
    return own == parents


def _parent_pid(pid: int) -> int:
    return int(stat_fields(read_stat(pid))[1])
