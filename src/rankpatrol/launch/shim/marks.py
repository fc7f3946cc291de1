"""What the rank's probe needs of its shim: memory for its marks, and words in the environment. launch/probe/layout.py explains it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Dict, Mapping, NamedTuple, Optional, Tuple

SIZE_BYTES = 16384
MAGIC = b"RPMARKS2"
PROBE_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "probe", "on_path")
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4  # fcntl(2)
_F_SETPIPE_SZ, _STACKS_BYTES = 1031, 256 << 10  # fcntl(2)


class Held(NamedTuple):
    """The shim's descriptors for the probe: the marks, and the pipe of stacks (both ends: without a reader a writer would be signalled)."""

    marks_fd: int
    stacks_fd: Optional[int] = None
    rank_stacks_fd: Optional[int] = None

    def inherited(self) -> Tuple[int, ...]:
        """What the rank gets."""
        return (self.marks_fd,) if self.rank_stacks_fd is None else (self.marks_fd, self.rank_stacks_fd)


def with_probe(environment: Mapping[str, str], run_dir: str, socket: str) -> Tuple[Dict[str, str], Optional[Held]]:
    """The environment in which Python starts the probe, and what we hold for it; as it was, and None, where that cannot be."""
    if not os.access(os.path.join(PROBE_PATH, "sitecustomize.py"), os.R_OK) or os.pathsep in PROBE_PATH:
        return dict(environment), None
    try:
        marks_fd = make_marks(run_dir)
    except OSError:
        return dict(environment), None
    held = Held(marks_fd, *make_stacks())
    users = environment.get("PYTHONPATH")
    words = {
        "RANKPATROL_MARKS_FD": str(marks_fd),
        "RANKPATROL_PROBE_PARENT": str(os.getpid()),
        "RANKPATROL_PROBE_SOCKET": socket,
        "RANKPATROL_STACKS_FD": str(-1 if held.rank_stacks_fd is None else held.rank_stacks_fd),
        "PYTHONPATH": PROBE_PATH + os.pathsep + users if users else PROBE_PATH,
    }
    if users is not None:
        words["RANKPATROL_USER_PYTHONPATH"] = users
    return {**environment, **words}, held


def make_stacks() -> Tuple[Optional[int], Optional[int]]:
    """A pipe that never makes its writer wait: what does not fit is lost. Its two ends, or None twice where there can be none."""
    try:
        ours, ranks = os.pipe()
    except OSError:
        return None, None
    with contextlib.suppress(OSError):  # a user's pipes may have no more room (pipe(7)); 64 KiB hold most stacks
        fcntl.fcntl(ours, _F_SETPIPE_SZ, _STACKS_BYTES)
    os.set_blocking(ranks, False)
    return ours, ranks


def make_marks(folder: str) -> int:
    """A file in memory that only descriptors name, else one in `folder` without a name; all its room is taken now. Raises OSError."""
    marks_fd = _memory() if hasattr(os, "memfd_create") else -1
    if marks_fd < 0:
        marks_fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(marks_fd, 0, SIZE_BYTES)  # a store into a full file system would end the rank (SIGBUS)
        os.pwrite(marks_fd, MAGIC, 0)
    except OSError:
        os.close(marks_fd)
        raise
    with contextlib.suppress(OSError):  # whoever shortened the file would end the rank; only memory can be sealed
        fcntl.fcntl(marks_fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
    return marks_fd


def _memory() -> int:
    try:
        return os.memfd_create("rankpatrol-marks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return -1
