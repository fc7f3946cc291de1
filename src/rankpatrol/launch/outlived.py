"""The end of a run directory. While a process of the job lives on, the records stay: by them it can be told, and proved, whose it was."""

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from rankpatrol.core.records import Record
from rankpatrol.launch.rundir import RankPlace, RunDir, run_dir_folders
from rankpatrol.system.process import identify, read_stat, stat_fields

NOTE = "outlived.json"
_LEAVING_S = 1.0
# What says whose a process was, and that its job is over (orphans/run_records.py); all else was for the job's own time.
_RECORDS = frozenset({"job.json", "launcher.json", "launcher_exit.json", "ranks", "exits", NOTE})


class Outlived(Record, frozen=True):
    """The job is over, and these processes of its ranks were not, in this pid namespace of this node: elsewhere the numbers say nothing."""

    at_unix_s: float
    node: str
    pid_namespace: str
    pids: tuple[int, ...]


def retire(run_dir: RunDir) -> tuple[int, ...]:
    """The job is over: remove its run directory, or keep its records while a process of a rank lives. Returns those processes.

    Earlier jobs' records are removed where nobody is left.
    """
    for folder in run_dir_folders():
        _sweep(Path(folder))
    pids = _after_a_moment(run_dir.places())
    if not pids:
        run_dir.remove()
        return ()
    try:
        run_dir.write(NOTE, Outlived(time.time(), *_here(), pids))
    except OSError:
        return pids  # a full disk: all of it stays, which is as good a record
    if not (run_dir.path / "undelivered.json").exists():
        for entry in run_dir.path.iterdir():
            if entry.name not in _RECORDS:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)
    return pids


def _after_a_moment(places: tuple[RankPlace, ...]) -> tuple[int, ...]:
    """Who lives on; helpers of Python that end with their rank need some milliseconds for it."""
    until = time.monotonic() + _LEAVING_S
    while (pids := survivors(places)) and time.monotonic() < until:
        time.sleep(0.05)
    return pids


def survivors(places: Iterable[RankPlace]) -> tuple[int, ...]:
    """The living processes of the Unix sessions that these ranks' shims made: setsid(2) is the only way out of one."""
    node = os.uname().nodename
    began = {place.pid: place.start_ticks for place in places if place.node == node}
    ours = {session for session, start_ticks in began.items() if _leader_is_gone_or(session, start_ticks)}
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # ruff: ignore[PTH208] - names only
    return tuple(sorted(pid for pid in pids if _session(pid) in ours and not _has_ended(pid)))


def _leader_is_gone_or(session: int, start_ticks: int) -> bool:
    leader = identify(session)
    return leader is None or leader.start_ticks == start_ticks


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _has_ended(pid: int) -> bool:
    """True for a zombie, which some containers never reap; one whose other threads live has not ended."""
    try:
        fields = stat_fields(read_stat(pid))
    except (OSError, ValueError):
        return True
    return fields[0] in "ZX" and int(fields[17]) <= 1


def _sweep(folder: Path) -> None:
    """Remove what was kept for processes that are gone by now, of this user alone."""
    for note in folder.glob(f"rankpatrol-*/{NOTE}"):
        run_dir = RunDir(note.parent)
        told = run_dir.read(NOTE, Outlived)
        if told is None or (told.node, told.pid_namespace) != _here() or not _belongs_to_us(note.parent):
            continue
        if not survivors(run_dir.places()):
            run_dir.remove()


def _belongs_to_us(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _here() -> tuple[str, str]:
    """This node, and this pid namespace (namespaces(7))."""
    return os.uname().nodename, os.readlink("/proc/self/ns/pid")  # ruff: ignore[PTH115] - a magic link
