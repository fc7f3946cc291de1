"""The mounts that can hang, read from the kernel's own lists: the mounts themselves are never touched."""

import re
from collections.abc import Iterator
from pathlib import Path

from rankpatrol.orphans.explain import FuseConnection, Mounts


def read_mounts(mountinfo: Path = Path("/proc/self/mountinfo"), connections: Path = Path("/sys/fs/fuse/connections")) -> Mounts:
    """FUSE and NFS mounts. What cannot be read is left out: it only makes the advice shorter."""
    try:
        lines = mountinfo.read_text(errors="replace").splitlines()
    except OSError:
        return Mounts()
    parsed = list(_parse(lines))
    fuse = tuple(FuseConnection(minor, mount, _waiting(connections, minor)) for minor, mount, kind in parsed if kind.startswith("fuse"))
    return Mounts(fuse=fuse, nfs=tuple(f"{mount}" for _, mount, kind in parsed if kind in {"nfs", "nfs4"}))


def _parse(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Minor device number, mount point and type of each line (proc_pid_mountinfo(5))."""
    for line in lines:
        head, _, tail = line.partition(" - ")
        words = head.split()
        if len(words) < 5 or not tail:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[4])
        yield int(words[2].partition(":")[2]), mount, tail.split()[0]


def _waiting(connections: Path, number: int) -> int:
    try:
        return int((connections / str(number) / "waiting").read_text())
    except (OSError, ValueError):
        return 0
