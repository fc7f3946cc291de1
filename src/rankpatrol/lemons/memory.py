"""The memory's one file: SQLite, written by many agents. Everything raises LemonProblem alone, and nothing waits longer than `WAIT_S`."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankpatrol.core.errors import PatrolError
from rankpatrol.lemons.records import Memory, NodeIncident, NodeUse
from rankpatrol.system.state_dir import state_dir

if TYPE_CHECKING:
    import sqlite3

WAIT_S = 2.0
VERSION = 1
# A year and a month: seasons can be compared, and the file stays small.
_KEPT_S = 400 * 86400.0
_INCIDENTS = "job, incident, at_unix_s, node, device, verdict, cause, sentence"
_TABLES = (
    f"CREATE TABLE IF NOT EXISTS incidents ({_INCIDENTS}, PRIMARY KEY (job, incident, node, device))",
    "CREATE TABLE IF NOT EXISTS uses (job, node, at_unix_s, PRIMARY KEY (job, node))",
)


class LemonProblem(PatrolError):
    """The memory of nodes cannot be read or written. No job is any the worse for it."""

    help = "Name another file by RANKPATROL_LEMONS=/path/lemons.sqlite3, or set it to nothing for no memory. Trainings go on either way."


def lemon_path() -> Path | None:
    """Where the memory lies: RANKPATROL_LEMONS (empty: nowhere), else the state directory."""
    chosen = os.environ.get("RANKPATROL_LEMONS")
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        return state_dir() / "lemons.sqlite3"
    except RuntimeError:  # a user without a home
        return None


class LemonMemory:
    """What all jobs of this user remember of nodes. A row is written once, however often it is told."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, memory: Memory) -> None:
        """Remember these as well, and forget what is older than a year. Raises LemonProblem."""
        with self._open(to_write=True) as database:
            incidents = ((i.job, i.incident, i.at_unix_s, i.node, i.device, i.verdict, i.cause, i.sentence) for i in memory.incidents)
            database.executemany("INSERT OR IGNORE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (_storable(row) for row in incidents))
            uses = ((use.job, use.node, use.at_unix_s) for use in memory.uses)
            database.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?, ?)", (_storable(row) for row in uses))
            times = [each.at_unix_s for each in memory.incidents] + [each.at_unix_s for each in memory.uses]
            latest = max(times, default=0.0)
            for table in ("incidents", "uses"):
                database.execute(f"DELETE FROM {table} WHERE at_unix_s < ?", (latest - _KEPT_S,))  # ruff: ignore[S608] - our two names

    def read(self) -> Memory:
        """All of it; nothing where there is no file yet. Raises LemonProblem."""
        if not self.path.exists():
            return Memory()
        with self._open(to_write=False) as database:
            incidents = database.execute(
                "SELECT job, incident, at_unix_s, node, device, verdict, cause, sentence FROM incidents"
            ).fetchall()
            uses = database.execute("SELECT job, node, at_unix_s FROM uses").fetchall()
            return Memory(incidents=tuple(_incident(row) for row in incidents), uses=tuple(_use(row) for row in uses))

    def forget(self, node: str) -> int:
        """Forget a node's incidents, since it was mended; how many there were. Raises LemonProblem."""
        if not self.path.exists():
            return 0
        with self._open(to_write=True) as database:
            return database.execute("DELETE FROM incidents WHERE node = ?", (node,)).rowcount

    @contextlib.contextmanager
    def _open(self, *, to_write: bool) -> "Iterator[sqlite3.Connection]":
        """One transaction. The rollback journal, not WAL: the file may lie on NFS (sqlite.org/wal.html)."""
        sqlite = _sqlite()
        try:
            if to_write:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = "rwc" if to_write else "ro"
            place = f"{self.path.absolute().as_uri()}?mode={mode}"
            with contextlib.closing(sqlite.connect(place, uri=True, timeout=WAIT_S)) as database, database:
                self._prepare(database, to_write=to_write)
                yield database
        except (sqlite.Error, OSError, ValueError, TypeError, OverflowError) as problem:
            raise LemonProblem(f"the memory of nodes ({self.path}) cannot be {'written' if to_write else 'read'}: {problem}") from problem

    def _prepare(self, database: "sqlite3.Connection", *, to_write: bool) -> None:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise LemonProblem(f"the memory of nodes ({self.path}) was made by a later version of rankpatrol")
        if to_write:
            database.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                database.execute(table)
            if version < VERSION:
                database.execute(f"PRAGMA user_version = {VERSION}")


def _sqlite() -> Any:
    """Not every Python was built with it, and the patrol must start without."""
    try:
        return importlib.import_module("sqlite3")
    except ImportError as problem:
        raise LemonProblem("this Python has no sqlite3, so there is no memory of nodes") from problem


def _storable(row: tuple[object, ...]) -> tuple[object, ...]:
    """A word of a log need not be valid Unicode, SQLite's must be."""
    return tuple(value.encode(errors="replace").decode() if isinstance(value, str) else value for value in row)


def _incident(row: tuple[Any, ...]) -> NodeIncident:
    """SQLite holds to no type: a file that others wrote into may have anything anywhere."""
    job, incident, at, node, device, verdict, cause, sentence = row
    return NodeIncident(
        job=str(job),
        incident=int(incident),
        at_unix_s=float(at),
        node=str(node),
        device=str(device),
        verdict=str(verdict),
        cause=str(cause),
        sentence=str(sentence),
    )


def _use(row: tuple[Any, ...]) -> NodeUse:
    job, node, at = row
    return NodeUse(job=str(job), node=str(node), at_unix_s=float(at))
