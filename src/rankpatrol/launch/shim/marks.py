"""What the rank's probe needs of its shim: memory for its marks, and words in the environment. launch/probe/layout.py explains it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Dict, Mapping, Optional, Tuple

SIZE_BYTES = 16384
MAGIC = b"RPMARKS1"
PROBE_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "probe", "on_path")
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4  # fcntl(2)


def with_probe(environment: Mapping[str, str], run_dir: str, socket: str) -> Tuple[Dict[str, str], Optional[int]]:
    """The environment in which Python starts the probe, and the marks' descriptor; as it was, and None, where that cannot be."""
    if not os.access(os.path.join(PROBE_PATH, "sitecustomize.py"), os.R_OK) or os.pathsep in PROBE_PATH:
        return dict(environment), None
    try:
        marks_fd = make_marks(run_dir)
    except OSError:
        return dict(environment), None
    users = environment.get("PYTHONPATH")
    words = {
        "RANKPATROL_MARKS_FD": str(marks_fd),
        "RANKPATROL_PROBE_PARENT": str(os.getpid()),
        "RANKPATROL_PROBE_SOCKET": socket,
        "PYTHONPATH": PROBE_PATH + os.pathsep + users if users else PROBE_PATH,
    }
    if users is not None:
        words["RANKPATROL_USER_PYTHONPATH"] = users
    return {**environment, **words}, marks_fd


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
