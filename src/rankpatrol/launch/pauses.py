"""The switch that stops every action: one a job, in its run directory, and one for all jobs of this user on this machine.

While it is there, watching, alerts, verdicts and sealing go on. It outlives agents: it is a file, and only `unpause` removes it.
"""

import getpass
import os
import time
from pathlib import Path

import msgspec

from rankpatrol.core.errors import BadInput, NoPermission, PatrolError
from rankpatrol.core.records import Record
from rankpatrol.launch.rundir import RunDir
from rankpatrol.system.files import read_plain, write_atomic
from rankpatrol.system.state_dir import state_dir

JOB_SWITCH = "paused.json"
_MOST_BYTES = 1 << 20


class Pause(Record, frozen=True, kw_only=True):
    """Nobody acts: since when, by whom and why, as that person said. `scope`: this job, or all of the user's on this machine."""

    since_unix_s: float
    by: str
    why: str = ""
    scope: str = "job"


def machine_switch() -> Path:
    """Where the switch for all of this user's jobs on this machine lies. Homes are shared between machines, so the name says which.

    Raises RuntimeError for a user without a home.
    """
    return state_dir() / f"paused-{os.uname().nodename}.json"


def job_switch(run_dir: RunDir) -> Path:
    """Where one job's switch lies: on a local disk, where its agent reads it."""
    return run_dir.path / JOB_SWITCH


def read_pause(switch: Path, scope: str) -> Pause | None:
    """The pause, or None where there is none. A switch that is there and cannot be read stands: somebody wanted nobody to act."""
    try:
        return msgspec.structs.replace(msgspec.json.decode(read_plain(switch, _MOST_BYTES), type=Pause), scope=scope)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, PatrolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        if _is_closed(switch):
            return None  # sudo -u may leave HOME as it was: a home that is closed to us holds no word of ours
        return Pause(since_unix_s=_changed_unix_s(switch), by="somebody", why=f"{switch} cannot be read: {problem}", scope=scope)


def machine_pause() -> Pause | None:
    """The pause of all this user's jobs on this machine; a user without a home has no such switch."""
    try:
        switch = machine_switch()
    except RuntimeError:
        return None
    return read_pause(switch, "machine")


def say_since(pause: Pause) -> str:
    """Since when, by whom and why, as people read it; a time that no calendar has is said to be none."""
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(pause.since_unix_s))
    except (ValueError, OverflowError, OSError):
        since = "a time that is none"
    return f"since {since} by {pause.by}" + (f" ({pause.why})" if pause.why else "")


def set_pause(switch: Path, pause: Pause) -> Pause:
    """Pause, unless it is paused already; the pause that stands. Raises NoPermission or BadInput."""
    standing = read_pause(switch, pause.scope)
    if standing is not None:
        return standing
    try:
        switch.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(switch, msgspec.json.encode(pause), durable=True)
    except OSError as problem:
        raise _refused(switch, problem, "pause") from problem
    return pause


def lift_pause(switch: Path, scope: str) -> Pause | None:
    """Remove the switch; the pause that stood, or None where there was none. Raises NoPermission or BadInput."""
    standing = read_pause(switch, scope)
    try:
        switch.unlink(missing_ok=True)
    except NotADirectoryError:
        return None
    except OSError as problem:
        raise _refused(switch, problem, "unpause") from problem
    return standing


def who_asks() -> str:
    """The person at the keyboard: user and machine, also behind sudo."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        user = f"uid {os.getuid()}"
    return f"{user}@{os.uname().nodename}"


def _is_closed(switch: Path) -> bool:
    """True where its folder does not let us see whether it is there."""
    try:
        switch.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _changed_unix_s(switch: Path) -> float:
    try:
        return switch.stat().st_mtime
    except OSError:
        return 0.0


def _refused(switch: Path, problem: OSError, what: str) -> BadInput | NoPermission:
    kind = NoPermission if isinstance(problem, PermissionError) else BadInput
    return kind(
        f"cannot {what}: {switch}: {problem.strerror}",
        help="Nothing has changed. Run it as the user who started the job, or set RANKPATROL_STATE_DIR to a folder you can write "
        "(the same for the jobs and for this command).",
    )
