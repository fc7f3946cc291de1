"""The run directory: small files on a local disk through which parent, agent and shims know of each other.

job.json                     what was started (JobSpec), written once by the parent
launcher.json                the launcher's identity; launcher_exit.json: how it ended; ending.json: a signal that ordered the end
claims|ranks|exits/<attempt>.<rank>.json    written once each by that rank's shim
shims/<attempt>.<rank>.sock  where that shim takes the one request there is
resume/<attempt>.json        where an attempt resumes from: the first writer's word stands for all its ranks
newest_good.json             the newest verified checkpoint, kept by the agent
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from rankpatrol.core.records import ProcessId, Record
from rankpatrol.system.files import write_atomic, write_once

ROOMS = ("claims", "ranks", "exits", "shims", "resume")
T = TypeVar("T")


class JobSpec(Record, frozen=True, kw_only=True):
    """What `rankpatrol run` was asked to do. `job_dir` is absolute."""

    job: str
    job_dir: str
    command: tuple[str, ...]
    policy: str
    patience_s: float
    checkpoints: str | None
    started_unix_s: float


class RankPlace(Record, frozen=True, kw_only=True):
    """One rank of one attempt, as its shim registered it."""

    attempt: int
    rank: int
    local_rank: int
    world_size: int
    node: str
    shim_pid: int
    shim_start_ticks: int
    pid: int
    start_ticks: int
    torchrun_restarts: int
    scheduler_restarts: int
    started_unix_s: float


class RankExit(Record, frozen=True, kw_only=True):
    """How a rank ended: its exit status (negative for a signal), and whether rankpatrol had asked for it."""

    exit_status: int
    by_request: bool
    ended_unix_s: float


class LauncherExit(Record, frozen=True, kw_only=True):
    """How CMD ended."""

    exit_code: int
    ended_unix_s: float


class OrderedEnd(Record, frozen=True, kw_only=True):
    """A user or a scheduler asked the job to end, by this signal."""

    signal: str
    at_unix_s: float


class ResumePoint(Record, frozen=True, kw_only=True):
    """The checkpoint an attempt starts from ("" for none), and who said so."""

    checkpoint: str
    step: int | None
    by: str


class RunDir:
    """One job's run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls) -> "RunDir":
        """Make a new one, closed to other users, in XDG_RUNTIME_DIR or the temporary folder: local disks both. Raises OSError."""
        path = Path(tempfile.mkdtemp(prefix="rankpatrol-", dir=os.environ.get("XDG_RUNTIME_DIR") or None))
        for room in ROOMS:
            (path / room).mkdir()
        return cls(path)

    def remove(self) -> None:
        """The job is over: what was worth keeping is in the job directory."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, record: Record) -> None:
        """Replace a file. Raises OSError."""
        write_atomic(self.path / name, msgspec.json.encode(record))

    def write_first(self, name: str, record: Record) -> bool:
        """Write a file unless it is there; True where we were first. Raises OSError."""
        return write_once(self.path / name, msgspec.json.encode(record))

    def read(self, name: str, kind: type[T]) -> T | None:
        """A file's record, or None where it is not there (yet) or not whole."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def places(self) -> tuple[RankPlace, ...]:
        """Every rank that ever registered, by attempt and rank."""
        found = (self.read(f"ranks/{name}", RankPlace) for name in self._names("ranks"))
        return tuple(sorted((place for place in found if place), key=lambda place: (place.attempt, place.rank)))

    def claimed_attempts(self) -> tuple[int, ...]:
        """The attempts of which at least one shim has started, in order."""
        return tuple(sorted({int(name.split(".")[0]) for name in self._names("claims")}))

    def exit_of(self, place: RankPlace) -> RankExit | None:
        """How this rank ended, or None while it runs (or where its shim could not say)."""
        return self.read(f"exits/{place.attempt}.{place.rank}.json", RankExit)

    def socket_of(self, place: RankPlace) -> Path:
        """Where this rank's shim listens."""
        return self.path / "shims" / f"{place.attempt}.{place.rank}.sock"

    def _names(self, room: str) -> list[str]:
        try:
            return [name for name in os.listdir(self.path / room) if name.endswith(".json")]  # ruff: ignore[PTH208] - names only
        except OSError:
            return []


def launcher_of(run_dir: RunDir) -> ProcessId | None:
    """The process of CMD, once it was started."""
    return run_dir.read("launcher.json", ProcessId)
