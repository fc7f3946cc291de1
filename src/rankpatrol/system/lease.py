"""One actor at a time: a lease in a folder that all who might act can see, on a local disk or on a shared one.

Leases are numbered files, each written once (a hard link decides who is first, on NFS too); the highest number holds. So two who see the
same lease run out cannot both follow it.
"""

import os
import socket
from pathlib import Path

import msgspec

from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import ProcessId, Record
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic, write_once
from rankpatrol.system.process import boot_id, identify

# Clocks of two nodes may differ by seconds, and a file takes a moment to be seen on the other side.
_SKEW_S = 30.0


class LeaseTaken(PatrolError):
    """Somebody else may act now, or the lease cannot be written."""

    help = "Nothing was done. Look again when that is over; the lease of one who died is free at once on its node, elsewhere in time."


class Holder(Record, frozen=True, kw_only=True):
    """Who holds a lease, and until when. A pid says something in its own pid namespace alone (pid_namespaces(7))."""

    who: str
    host: str
    process: ProcessId
    pid_namespace: str
    until_unix_s: float


class Lease:
    """The right to act, until it is given back or runs out."""

    def __init__(self, folder: Path, number: int, holder: Holder, clock: Clock) -> None:
        self._folder, self._number, self._holder, self._clock = folder, number, holder, clock

    def why_not(self) -> str:
        """Why we may not act any more, or nothing while we may."""
        if self._clock.unix_s() >= self._holder.until_unix_s:
            return "our lease of this job has run out"
        return "" if _newest(self._folder) == self._number else "somebody else has taken over this job"

    def give_back(self) -> None:
        """Let others act. Raises OSError."""
        given = msgspec.structs.replace(self._holder, until_unix_s=0.0)
        write_atomic(self._folder / f"{self._number}.json", msgspec.json.encode(given))


def take_lease(folder: Path, who: str, clock: Clock, *, lasts_s: float) -> Lease:
    """Take the lease of this folder. Raises LeaseTaken where somebody holds it or was faster, or the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        newest = _newest(folder)
        if held := standing(folder, clock):
            raise LeaseTaken(held)
        us = identify(os.getpid()) or ProcessId(boot_id(), os.getpid(), 0)
        until_unix_s = clock.unix_s() + lasts_s
        ours = Holder(who=who, host=socket.gethostname(), process=us, pid_namespace=_pid_namespace(), until_unix_s=until_unix_s)
        if not write_once(folder / f"{newest + 1}.json", msgspec.json.encode(ours)):
            raise LeaseTaken("somebody else has just begun to act on this job")
    except OSError as problem:
        raise LeaseTaken(f"the lease of this job cannot be written: {problem.strerror} ({folder})", help=_WRITABLE) from problem
    return Lease(folder, newest + 1, ours, clock)


def standing(folder: Path, clock: Clock) -> str:
    """Who holds this lease now, in words; nothing where nobody does."""
    held = _holder(folder, _newest(folder))
    if held is None or not _holds(held, clock):
        return ""
    return f"{held.who} on {held.host} (process {held.process.pid}) acts on this job already"


_WRITABLE = "Nothing was done. Name a folder that all who might act can write to: RANKPATROL_LEASES=/shared/folder"


def _holds(held: Holder, clock: Clock) -> bool:
    """A holder of this boot that is gone holds nothing; of another node only time tells."""
    here = (held.process.boot_id, held.pid_namespace) == (boot_id(), _pid_namespace())
    if here and identify(held.process.pid) != held.process:
        return False
    return clock.unix_s() < held.until_unix_s + _SKEW_S


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "unknown"


def _newest(folder: Path) -> int:
    return max((int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()), default=0)


def _holder(folder: Path, number: int) -> Holder | None:
    """None where there is none; one that cannot be read holds nothing for ever, so it counts as none."""
    try:
        return msgspec.json.decode((folder / f"{number}.json").read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return None
