"""This machine: the kernel's features, room and place for what is written, clock, scheduler, GPUs, the kernel's log."""

import contextlib
import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing, Record
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.evidence.host import kernel_log, mounts
from rankpatrol.launch.parent import PYTHON_SHIM
from rankpatrol.launch.pauses import Pause, machine_switch, say_since
from rankpatrol.launch.rundir import run_dir_folders
from rankpatrol.system.command import run

_SHM = Path("/dev/shm")  # ruff: ignore[S108] - looked at, not written to
# Docker gives 64 MiB where nobody says --shm-size; a DataLoader with workers passes every batch through it.
_SHM_LEAST_BYTES = 1 << 30
_RUN_DIR_LEAST_BYTES = 200 << 20
# File systems that wait for another machine. A run directory there could hang with what the patrol is to tell of.
_REMOTE = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "wekafs", "panfs", "afs", "9p", "virtiofs"}
)
_NVML_S, _NVML = 15.0, "import ctypes, sys; sys.exit(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
# NVML_ERROR_UNKNOWN of nvml.h
_HANGS = 999
NO_DRIVER = "no NVIDIA driver"
_NO_LIBRARY = "cannot open shared object file"
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


class Room(Record, frozen=True, kw_only=True):
    """One folder: its file system, and the room there is in it."""

    path: str
    file_system: str
    total_bytes: int
    free_bytes: int


def look_at_kernel() -> dict[str, bool]:
    """Which of the features that we lean on the kernel has, and lets us use."""
    found = {"pidfd": False, "memfd": False}
    with contextlib.suppress(AttributeError, OSError):
        os.close(os.pidfd_open(os.getpid()))
        found["pidfd"] = True
    with contextlib.suppress(AttributeError, OSError):
        os.close(os.memfd_create("rankpatrol-doctor"))
        found["memfd"] = True
    return found


def judge_kernel(found: Mapping[str, bool]) -> tuple[Row, ...]:
    """Without pidfd we signal nobody; without memfd the marks take a file."""
    rows = []
    if found["pidfd"]:
        rows.append(Row("pidfd", Level.OK, "a signal reaches exactly the process that is meant"))
    else:
        rows.append(
            Row(
                "pidfd",
                Level.CRITICAL,
                "no pidfd_open: Linux before 5.3, or a seccomp profile forbids it",
                "Update the kernel or the container's profile.",
            )
        )
    marks = "marks live in memory alone" if found["memfd"] else "no memfd: marks take a file without a name in the run directory"
    return (*rows, Row("memfd", Level.OK if found["memfd"] else Level.HINT, marks))


def look_at_room(path: Path) -> Room | Missing:
    """The file system a folder lies on; statfs of a dead server hangs, so this is asked of local folders alone."""
    try:
        seen = os.statvfs(path)
    except OSError as problem:
        return Missing(f"{path}: {problem.strerror}")
    return Room(
        path=str(path),
        file_system=file_system_of(path),
        total_bytes=seen.f_blocks * seen.f_frsize,
        free_bytes=seen.f_bavail * seen.f_frsize,
    )


def file_system_of(path: Path) -> str:
    """The type of the mount a path lies on, by the kernel's table alone."""
    real = os.path.realpath(path)
    best, kind = "", "unknown"
    for mount in mounts():
        where = mount["where"]
        # Later mounts cover earlier ones of the same place.
        if (real == where or real.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, mount["type"]
    return kind


def look_at_shm() -> Room | Missing:
    """The place where loader processes put their batches."""
    return look_at_room(_SHM)


def judge_shm(room: Room | Missing) -> tuple[Row, ...]:
    """A full one ends ranks with SIGBUS."""
    if isinstance(room, Missing):
        return (Row("dev-shm", Level.WARNING, room.reason, "Loader processes need it: mount a tmpfs at /dev/shm."),)
    say = f"{_say_bytes(room.free_bytes)} of {_say_bytes(room.total_bytes)} free in {room.path}"
    if min(room.total_bytes, room.free_bytes) < _SHM_LEAST_BYTES:
        return (
            Row(
                "dev-shm",
                Level.WARNING,
                f"{say}: a batch that does not fit ends its rank with SIGBUS",
                "docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir of medium Memory there; or remove what is left in it.",
            ),
        )
    return (Row("dev-shm", Level.OK, say),)


def look_at_run_dir() -> Room | Missing:
    """Where the run directory of a job started here would lie."""
    for folder in run_dir_folders():
        if os.access(folder, os.W_OK | os.X_OK):
            return look_at_room(Path(folder))
    return Missing(f"none of {', '.join(run_dir_folders())} can be written")


def judge_run_dir(room: Room | Missing) -> tuple[Row, ...]:
    """It must be local, and hold an incident's bundle."""
    if isinstance(room, Missing):
        return (Row("run-directory", Level.CRITICAL, room.reason, "TMPDIR=/local/disk rankpatrol run …"),)
    say = f"{room.path} ({room.file_system}), {_say_bytes(room.free_bytes)} free"
    if is_remote(room.file_system):
        return (
            Row(
                "run-directory",
                Level.WARNING,
                f"{say}: it may hang with the very file system that the patrol is to tell of",
                "TMPDIR=/local/disk rankpatrol run …",
            ),
        )
    if room.free_bytes < _RUN_DIR_LEAST_BYTES:
        return (
            Row(
                "run-directory",
                Level.WARNING,
                f"{say}: evidence may not fit, and without it nothing is acted upon",
                "Make room there, or TMPDIR=/local/disk rankpatrol run …",
            ),
        )
    return (Row("run-directory", Level.OK, say),)


def is_remote(file_system: str) -> bool:
    """True for file systems that wait for another machine; of FUSE it cannot be told, and it is taken for one."""
    return file_system in _REMOTE or file_system.startswith("fuse")


def look_at_state_dir() -> tuple[str, bool] | Missing:
    """Where `pause` keeps its switch, and whether it could be written there."""
    try:
        folder = machine_switch().parent
    except RuntimeError as problem:
        return Missing(str(problem))
    there = str(folder)
    while not os.path.lexists(there) and there != os.path.dirname(there):  # ruff: ignore[PTH120] - a closed folder is no error here
        there = os.path.dirname(there)  # ruff: ignore[PTH120] - as above
    return str(folder), os.access(there, os.W_OK | os.X_OK)


def judge_state_dir(seen: tuple[str, bool] | Missing) -> tuple[Row, ...]:
    """Only `pause` for all jobs needs it."""
    if isinstance(seen, Missing):
        return (
            Row(
                "state-directory",
                Level.WARNING,
                f"no place for `rankpatrol pause`: {seen.reason}",
                "Set RANKPATROL_STATE_DIR, for jobs and commands alike.",
            ),
        )
    folder, writable = seen
    if not writable:
        return (
            Row(
                "state-directory",
                Level.WARNING,
                f"{folder} cannot be written: `rankpatrol pause` works with a JOBDIR only",
                "Set RANKPATROL_STATE_DIR, for jobs and commands alike.",
            ),
        )
    return (Row("state-directory", Level.OK, folder),)


def judge_pause(pause: Pause | None) -> tuple[Row, ...]:
    """Somebody may have forgotten it."""
    if pause is None:
        return (Row("actions", Level.OK, "nobody has paused them on this machine"),)
    what = f"all jobs of this user on this machine are paused {say_since(pause)}: nobody acts"
    return (Row("actions", Level.WARNING, what, "To have hangs acted upon again: rankpatrol unpause"),)


def look_at_shim() -> bool:
    """Whether torchrun could start our shim."""
    return os.access(PYTHON_SHIM, os.X_OK)


def judge_shim(executable: bool) -> tuple[Row, ...]:
    """Without it ranks train unseen."""
    if executable:
        return (Row("shim", Level.OK, "torchrun can start the shim"),)
    return (
        Row(
            "shim",
            Level.CRITICAL,
            f"{PYTHON_SHIM} cannot be executed (a noexec mount, lost mode bits): ranks train without patrol",
            f"chmod +x {PYTHON_SHIM}, or install rankpatrol on another file system.",
        ),
    )


def look_at_clock() -> int | Missing:
    """What adjtimex(2) answers, asked without a change."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer = libc.adjtimex(ctypes.create_string_buffer(512))  # struct timex has 208 bytes, all 0: modes 0 changes nothing
    return Missing(f"adjtimex: {os.strerror(ctypes.get_errno())}") if answer < 0 else int(answer)


def judge_clock(answer: int | Missing) -> tuple[Row, ...]:
    """Durations never depend on it; times of several nodes side by side do."""
    if isinstance(answer, Missing):
        return (
            Row(
                "clock",
                Level.UNKNOWN,
                f"whether the clock is synchronised is not known ({answer.reason})",
                "timedatectl, or chronyc tracking",
            ),
        )
    if answer == _TIME_ERROR:
        return (
            Row(
                "clock",
                Level.HINT,
                "the clock is not synchronised: times of several nodes cannot be put side by side",
                "Start chronyd, ntpd or systemd-timesyncd.",
            ),
        )
    return (Row("clock", Level.OK, "synchronised"),)


def look_at_schedulers(environment: Mapping[str, str]) -> dict[str, tuple[bool, bool]]:
    """For each scheduler: whether we are inside of it, and whether it can be spoken to. Kubernetes has an API instead of commands."""
    path = environment.get("PATH")
    return {
        "Slurm": ("SLURM_JOB_ID" in environment, all(shutil.which(word, path=path) for word in ("squeue", "scontrol", "scancel"))),
        "Kubernetes": ("KUBERNETES_SERVICE_HOST" in environment, "KUBERNETES_SERVICE_HOST" in environment),
    }


def judge_schedulers(found: Mapping[str, tuple[bool, bool]]) -> tuple[Row, ...]:
    """Inside of one, its commands are how a job is ended."""
    rows = []
    for name, (inside, command) in found.items():
        if inside and not command:
            rows.append(
                Row(
                    "scheduler",
                    Level.WARNING,
                    f"we are inside of {name}, and squeue, scontrol and scancel are not on PATH",
                    "Put them on PATH: a job is asked about and ended through its scheduler.",
                )
            )
        elif inside or command:
            rows.append(Row("scheduler", Level.OK, f"{name}: {'this job runs under it' if inside else 'its commands are here'}"))
    return tuple(rows) or (Row("scheduler", Level.OK, "none: a job is ended through its launcher"),)


def look_at_gpus() -> int | Missing:
    """What NVML answers when it is started, in a child that can be left behind; Missing where there is no driver."""
    if not os.access(sys.executable, os.X_OK):
        return Missing(f"this user cannot start {sys.executable}")
    try:
        done = run([sys.executable, "-I", "-S", "-c", _NVML], deadline_s=_NVML_S)
    except CommandFailed:
        return _HANGS
    return Missing(NO_DRIVER) if _NO_LIBRARY.encode() in done.stderr else done.exit_code


def judge_gpus(answer: int | Missing) -> tuple[Row, ...]:
    """A driver that does not answer is a sick node."""
    if isinstance(answer, Missing):
        if answer.reason == NO_DRIVER:
            return (Row("gpus", Level.OK, f"{answer.reason}: CPU trainings only"),)
        return (Row("gpus", Level.UNKNOWN, f"NVML was not asked: {answer.reason}", "Run doctor as the user who trains."),)
    if answer == 0:
        return (Row("gpus", Level.OK, "NVML answers"),)
    if answer == _HANGS:
        return (
            Row(
                "gpus",
                Level.CRITICAL,
                f"NVML has not answered for {_NVML_S:g} s: a GPU has fallen off, or its driver is stuck",
                "nvidia-smi; dmesg | grep -i xid; drain the node.",
            ),
        )
    return (
        Row(
            "gpus",
            Level.WARNING,
            f"NVML ends with error {answer}",
            "nvidia-smi says more; is the device given to this container (--gpus all)?",
        ),
    )


def look_at_kernel_log() -> str | Missing:
    """The kernel's log, where it may be read."""
    return kernel_log()


def judge_kernel_log(log: str | Missing) -> tuple[Row, ...]:
    """It tells of killed processes and of GPU errors; nothing else does."""
    if isinstance(log, Missing):
        return (
            Row(
                "kernel-log",
                Level.WARNING,
                f"{log.reason}: a rank that the kernel killed for want of memory is not told from another SIGKILL",
                "sysctl kernel.dmesg_restrict=0, or give the agent CAP_SYSLOG; containers also need /dev/kmsg.",
            ),
        )
    return (Row("kernel-log", Level.OK, "the kernel's kills and GPU errors can be read"),)


def _say_bytes(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
