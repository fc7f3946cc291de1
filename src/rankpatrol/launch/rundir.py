"""The run directory: small files on a local disk through which parent, agent and shims know of each other.

job.json                     what was started (JobSpec), written once by the parent
agent.json                   the agent that runs now
launcher.json                the launcher's identity; launcher_exit.json: how it ended; ending.json: a signal that ordered the end
ending_for_good.json         SIGTERM, or a second Ctrl-C: what is left of the ranks once CMD has gone is ended by its shims
spool/                       the agent's records and bundles, before they are carried to the job directory
outlived.json                the job is over and a process of it is not: what proves whose it was is kept (launch/outlived.py)
undelivered.json             some of them could not be carried: the run directory is kept
openings/<attempt>.json      which start of the ranks this attempt is, by the first shim of it
claims|ranks|exits/<attempt>.<rank>.json    written once each by that rank's shim
bindings/<attempt>.<rank>.json  what that rank was bound to, or why it was not
shims/<attempt>.<rank>.sock  where that shim takes the one request there is
probes/<attempt>.<rank>.sock where torch's worker server answers in that rank, once its probe has started one
released.<attempt>.json      the agent has taken the evidence of a failed rank: its shim may pass the exit on
resume/<attempt>.json        how an attempt starts: from where, beware of what, not before when; the first writer's word stands
newest_good.json             the newest verified checkpoint, kept by the agent
paused.json                  somebody wants nobody to act (launch/pauses.py)
reserve                      room that is given free where the disk is full: to write down who may act, and how the next attempt starts
answer.json                  a person's yes to the open question, until the agent has taken it
"""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from rankpatrol.core.budget import Budget
from rankpatrol.core.errors import BadInput, PatrolError
from rankpatrol.core.records import ProcessId, Record
from rankpatrol.core.starts import SuspectFile
from rankpatrol.system.files import read_plain, write_atomic, write_once

# How the shim is named in a command line (launch/parent.py, SHIM).
SHIM_FOLDER = "/rankpatrol/launch/shim"
ROOMS = ("spool", "openings", "claims", "ranks", "exits", "bindings", "shims", "probes", "resume")
# A command line may have 2 MB (execve(2)); all else is small.
_MOST_BYTES = 16 << 20
_SOCKET_PATH_MOST = 107  # unix(7)
_LONGEST_INSIDE = len("/rankpatrol-xxxxxxxx/probes/9999.999999.sock")
# A lease, and some small files for each rank of the next attempt, of a block each.
_RESERVE, _RESERVE_BYTES, _FULL_BYTES = "reserve", 1 << 20, 64 << 10
_SETTLED_NS = 1_000_000_000
_NO_ROOM = "Nothing was started. Make room there, or name another local folder: TMPDIR=/local/disk rankpatrol run …"
T = TypeVar("T")


class Cluster(Record, frozen=True, kw_only=True):
    """A job on several nodes: our name among them, whether we are the node that judges, which run this is, and where they meet.

    `host` is the first node by the name under which the others reach it, where that is known. `meet_at` is the exchange's URL where
    somebody gave one; else the first node leaves it in the job directory.
    """

    node: str
    first: bool
    run: str
    host: str = ""
    meet_at: str | None = None


class JobSpec(Record, frozen=True, kw_only=True):
    """What `rankpatrol run` was asked to do, or (`attached`) `rankpatrol watch` of a job that runs already. `job_dir` is absolute.

    `resumes`: its first attempt goes on from the newest checkpoint as every other does, since its scheduler has started the job again, or
    since a person has asked for it (`resume_asked`).
    `restarts_in_place` is how often torchrun starts the ranks again, None where CMD is no torchrun. `metrics`: where to serve them
    (ADDR:PORT); `metrics_textfile`: the folder to write them into, absolute.
    """

    job: str
    job_dir: str
    command: tuple[str, ...]
    policy: str
    patience_s: float
    checkpoints: str | None
    started_unix_s: float
    probe: bool = True
    attached: bool = False
    bind: bool = True
    record: bool = False
    cluster: Cluster | None = None
    metrics: str | None = None
    metrics_textfile: str | None = None
    resumes: bool = False
    resume_asked: bool = False
    restarts_in_place: int | None = None
    budget: Budget = Budget()


class RankPlace(Record, frozen=True, kw_only=True):
    """One rank of one attempt, as its shim registered it.

    `node` is its scheduler's name of the node, `host` the machine's own. `marks_fd` is the shim's own descriptor of the rank's marks,
    `stacks_fd` that of the pipe into which the rank writes its stacks when it is asked; None where the rank was started without a probe.
    """

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
    marks_fd: int | None = None
    stacks_fd: int | None = None
    probe_socket: str | None = None
    host: str = ""


class RankExit(Record, frozen=True, kw_only=True):
    """How a rank ended: its exit status (negative for a signal), and whether rankpatrol had asked for it."""

    exit_status: int
    by_request: bool
    ended_unix_s: float


class Binding(Record, frozen=True, kw_only=True):
    """What a rank was bound to before its start, or why it was not, as its shim wrote it (affinity/plan.py, `document`)."""

    decision: str
    why: str
    gpu: str | None = None
    node: int | None = None
    cpus: tuple[int, ...] = ()
    memory_node: int | None = None
    notes: tuple[str, ...] = ()


class LauncherExit(Record, frozen=True, kw_only=True):
    """How CMD ended; None where nobody whose child it was has told us."""

    exit_code: int | None
    ended_unix_s: float


class OrderedEnd(Record, frozen=True, kw_only=True):
    """A user or a scheduler asked the job to end, by this signal."""

    signal: str
    at_unix_s: float


class Released(Record, frozen=True, kw_only=True):
    """The evidence of an attempt with a failed rank is taken: its shims may let the launcher see."""

    at_unix_s: float


class Answer(Record, frozen=True, kw_only=True):
    """A person says yes to the action that an incident waits for."""

    incident: int
    by: str
    at_unix_s: float


class ResumePoint(Record, frozen=True, kw_only=True):
    """The checkpoint an attempt starts from ("" for none), and who said so; the data it should beware of, and not before when."""

    checkpoint: str
    step: int | None
    by: str
    suspect_files: tuple[SuspectFile, ...] = ()
    not_before_unix_s: float | None = None


class _Opening(Record, frozen=True):
    group: dict[str, str | int | None]
    shim_pid: int | None = None


class RunDir:
    """One job's run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A shim registers its rank once and whole: what was read need not be read again, four times a second, for all attempts so far.
        self._known: dict[str, RankPlace] = {}
        self._bound: dict[str, Binding] = {}
        self._opened: dict[int, _Opening] = {}
        self._launcher: ProcessId | None = None
        self._listed: dict[str, tuple[int, list[str]]] = {}

    @classmethod
    def create(cls) -> "RunDir":
        """Make a new one on a local disk, closed to other users. Raises BadInput where there is no room for one."""
        refused = []
        for folder in run_dir_folders():
            try:
                return cls(_furnished(folder))
            except OSError as problem:
                refused.append(f"{folder}: {problem.strerror}")
        raise BadInput(f"no room for the run directory ({'; '.join(refused)})", help=_NO_ROOM)

    @property
    def spool(self) -> Path:
        """Where the agent writes first."""
        return self.path / "spool"

    def remove(self) -> None:
        """The job is over: what was worth keeping is in the job directory, unless that did not answer."""
        if (self.path / "undelivered.json").exists():
            return
        shutil.rmtree(self.path, ignore_errors=True)

    def keep_reserve(self) -> None:
        """Set room aside, unless that is done or there is little."""
        with contextlib.suppress(OSError):
            if not (self.path / _RESERVE).exists() and self._room_bytes() > 8 * _RESERVE_BYTES:
                _set_aside(self.path)

    def open_reserve(self) -> bool:
        """Give the room free that was set aside; False where there is none any more."""
        try:
            (self.path / _RESERVE).unlink()
        except OSError:
            return False
        return True

    def is_full(self) -> bool:
        """True where not even small files find room."""
        try:
            return self._room_bytes() < _FULL_BYTES
        except OSError:
            return False

    def _room_bytes(self) -> int:
        seen = os.statvfs(self.path)
        return seen.f_frsize * (seen.f_bavail if os.geteuid() else seen.f_bfree)

    def write(self, name: str, record: Record) -> None:
        """Replace a file. Raises OSError."""
        write_atomic(self.path / name, msgspec.json.encode(record))

    def write_first(self, name: str, record: Record) -> bool:
        """Write a file unless it is there; True where we were first. Raises OSError."""
        return write_once(self.path / name, msgspec.json.encode(record))

    def read(self, name: str, kind: type[T]) -> T | None:
        """A file's record, or None where it is not there (yet) or not whole."""
        try:
            return msgspec.json.decode(read_plain(self.path / name, _MOST_BYTES), type=kind)
        except (OSError, PatrolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def places(self) -> tuple[RankPlace, ...]:
        """Every rank that ever registered, by attempt and rank."""
        names = self._names("ranks")
        for name in names:
            if name not in self._known and (place := self.read(f"ranks/{name}", RankPlace)) is not None:
                self._known[name] = place
        found = (self._known[name] for name in names if name in self._known)
        return tuple(sorted(found, key=lambda place: (place.attempt, place.rank)))

    def claimed_attempts(self) -> tuple[int, ...]:
        """The attempts of which at least one shim has started, in order."""
        return tuple(sorted({int(first) for name in self._names("claims") if (first := name.split(".")[0]).isdecimal()}))

    def group_of(self, attempt: int) -> str | None:
        """What all ranks of this attempt have in common, on every node; None before its first shim, or for one of an older release.

        torchrun's count of restarts is left out: it differs between nodes. A rendezvous that keeps its port (static, or one shared store)
        starts every attempt alike: there, how many of the kind this node has had before is a part of the name.
        """
        opened = self._opening(attempt)
        if opened is None:
            return None
        common = _common(opened)
        # Of a job that was found, each node may have missed other attempts: nothing is counted.
        again = 0 if opened.shim_pid is None else sum(_common(each) == common for each in self._openings_before(attempt))
        return msgspec.json.encode({**common, "again": again} if again else common).decode()

    def _opening(self, attempt: int) -> _Opening | None:
        """Written once and whole."""
        if attempt not in self._opened and (read := self.read(f"openings/{attempt}.json", _Opening)) is not None:
            self._opened[attempt] = read
        return self._opened.get(attempt)

    def _openings_before(self, attempt: int) -> list[_Opening]:
        numbers = (int(stem) for name in self._names("openings") if (stem := name.removesuffix(".json")).isdecimal())
        return [opened for number in numbers if number < attempt and (opened := self._opening(number)) is not None]

    def exit_of(self, place: RankPlace) -> RankExit | None:
        """How this rank ended, or None while it runs (or where its shim could not say)."""
        return self.read(f"exits/{_file_of(place)}", RankExit)

    def exits(self, places: Iterable[RankPlace]) -> dict[int, RankExit]:
        """How those of these ranks ended that have: one look into the room, however many run still."""
        there = set(self._names("exits"))
        ended = (place for place in places if _file_of(place) in there)
        return {place.rank: seen for place in ended if (seen := self.exit_of(place)) is not None}

    def bindings(self, attempt: int) -> dict[int, Binding]:
        """What each rank of an attempt was bound to; one that nobody was asked to bind is left out."""
        there = set(self._names("bindings"))
        names = {place.rank: name for place in self.places() if place.attempt == attempt and (name := _file_of(place)) in there}
        for name in names.values():
            if name not in self._bound and (made := self.read(f"bindings/{name}", Binding)) is not None:
                self._bound[name] = made
        return {rank: self._bound[name] for rank, name in names.items() if name in self._bound}

    def socket_of(self, place: RankPlace) -> Path:
        """Where this rank's shim listens."""
        return self.path / "shims" / f"{place.attempt}.{place.rank}.sock"

    def launcher(self) -> ProcessId | None:
        """The process of CMD, once it was started. Written once."""
        self._launcher = self._launcher or self.read("launcher.json", ProcessId)
        return self._launcher

    def _names(self, room: str) -> list[str]:
        """A room is listed again when it has changed: it is asked for several times a second, and changes with an attempt."""
        folder = f"{self.path}/{room}"
        try:
            changed_ns = os.stat(folder).st_mtime_ns  # ruff: ignore[PTH116] - as below
            known_ns, names = self._listed.get(room, (None, []))
            if changed_ns != known_ns:
                now_ns = time.time_ns()
                names = [name for name in os.listdir(folder) if name.endswith(".json")]  # ruff: ignore[PTH208] - names only
                # What is written a moment later may get the same time, which advances by clock ticks (inode_set_ctime_current).
                if now_ns - changed_ns > _SETTLED_NS:
                    self._listed[room] = changed_ns, names
        except OSError:
            return []
        return names


def _file_of(place: RankPlace) -> str:
    return f"{place.attempt}.{place.rank}.json"


def _common(opened: _Opening) -> dict[str, str | int | None]:
    return {name: value for name, value in sorted(opened.group.items()) if name != "restarts"}


def run_dir_folders() -> list[str]:
    """Where a run directory may lie, best first.

    Not XDG_RUNTIME_DIR unless nothing else is there: it is emptied when its user logs out (pam_systemd(8)), and trainings outlive that.
    """
    folders = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm", os.environ.get("XDG_RUNTIME_DIR", "")]  # ruff: ignore[S108] - mkdtemp below
    return [folder for folder in dict.fromkeys(folders) if folder and len(folder) + _LONGEST_INSIDE <= _SOCKET_PATH_MOST]


def _furnished(folder: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="rankpatrol-", dir=folder))
    try:
        for room in ROOMS:
            (path / room).mkdir()
        # A full disk may still have room for folders.
        write_atomic(path / "job.json", b"{}")
        with contextlib.suppress(OSError):  # little room: all else is worth more
            _set_aside(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path


def _set_aside(path: Path) -> None:
    """Blocks that are really there, not a hole (posix_fallocate(3))."""
    reserve = path / _RESERVE
    try:
        with reserve.open("xb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
    except FileExistsError:
        return
    except OSError:
        reserve.unlink(missing_ok=True)
        raise
