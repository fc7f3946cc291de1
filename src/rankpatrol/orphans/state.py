"""What is kept of orphans on this node between two calls: their evidence, what earlier scans saw, which jobs ended here."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import ProcessId, Record
from rankpatrol.orphans.history import History, Sight
from rankpatrol.system.files import read_plain, write_atomic
from rankpatrol.system.process import boot_id
from rankpatrol.system.state_dir import state_dir

_MOST_BYTES = 16 << 20
# Hourly calls are in a row; what was seen before a longer gap proves nothing of now.
_TOO_OLD_S = 7200.0


def state_folder() -> Path:
    """Root's own (an Epilog has no home), or the state directory: /tmp may be emptied, and the job's disk may be what hangs."""
    if os.geteuid() == 0 and not os.environ.get("RANKPATROL_STATE_DIR"):
        return Path("/var/lib/rankpatrol")
    return state_dir()


def is_ours(folder: Path) -> bool:
    """True where strangers cannot write: what is read there leads to signals. A group may: many users have one of their own."""
    try:
        seen = folder.lstat()
    except OSError:
        return False
    return seen.st_uid == os.geteuid() and not seen.st_mode & stat.S_IWOTH


def seen_file() -> Path:
    """Where a scan leaves what it saw. Homes are shared between machines, so the name says which."""
    return state_folder() / f"orphans-seen-{os.uname().nodename}.json"


class Kept(Record, frozen=True, kw_only=True):
    """A history as it lies on the disk, with what it holds for: this boot, these device files."""

    at_unix_s: float
    boot_id: str
    devices: tuple[str, ...]
    sights: tuple[tuple[ProcessId, Sight], ...]
    ghost_memory: Mapping[int, int]
    ghost_load: Mapping[int, int]


class Remembered:
    """What earlier calls saw, so that the second sight may be the next call's: cron, a HealthCheckProgram."""

    def __init__(self, path: Path, devices: tuple[str, ...]) -> None:
        self._path, self._devices = path, devices

    def recall(self, now_unix_s: float) -> History:
        """Nothing where there is nothing, or where it is of another boot, of other devices, old, or where others could write it."""
        if not is_ours(self._path.parent):
            return History()
        try:
            kept = msgspec.json.decode(read_plain(self._path, _MOST_BYTES), type=Kept)
        except (OSError, PatrolError, msgspec.MsgspecError):
            return History()
        fits = kept.boot_id == boot_id() and kept.devices == self._devices and 0 <= now_unix_s - kept.at_unix_s <= _TOO_OLD_S
        return History(sights=dict(kept.sights), ghost_memory=kept.ghost_memory, ghost_load=kept.ghost_load) if fits else History()

    def keep(self, history: History, at_unix_s: float) -> str:
        """Why it could not be kept, or an empty word."""
        kept = Kept(
            at_unix_s=at_unix_s,
            boot_id=boot_id(),
            devices=self._devices,
            sights=tuple(history.sights.items()),
            ghost_memory=history.ghost_memory,
            ghost_load=history.ghost_load,
        )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(self._path, msgspec.json.encode(kept))
        except OSError as problem:
            return f"{self._path}: {problem.strerror}"
        return ""
