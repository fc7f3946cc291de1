"""What a process that hangs in the kernel waits for, and what a person can do about it: nobody can end it. Pure."""

import re
from typing import NamedTuple

from rankpatrol.core.records import Missing, Record
from rankpatrol.orphans.records import Judged


class FuseConnection(Record, frozen=True):
    """One FUSE mount: its connection's number below /sys/fs/fuse/connections, and how many requests wait in it."""

    number: int
    mount: str
    waiting: int


class Mounts(Record, frozen=True, kw_only=True):
    """The mounts that can hang."""

    fuse: tuple[FuseConnection, ...] = ()
    nfs: tuple[str, ...] = ()


class Wait(NamedTuple):
    """One row: functions of the kernel in which a process waits for the same thing."""

    channel: "re.Pattern[str]"
    kind: str


_WAITS = (
    Wait(re.compile(r"fuse|request_wait_answer"), "fuse"),
    Wait(re.compile(r"nfs|rpc_wait|^rpc_"), "nfs"),
    Wait(re.compile(r"uvm_|^nv_|nvidia|os_acquire_mutex|^rm_|nvkms"), "nvidia"),
    Wait(re.compile(r"amdgpu|kfd_|ttm_"), "amd"),
)
_NO_SIGNAL = "No signal can end it."


def explain(judged: Judged, mounts: Mounts) -> str:
    """What to do about a process in D state, from where it waits."""
    channel = "" if judged.process is None or isinstance(judged.process.wait_channel, Missing) else judged.process.wait_channel
    kind = next((row.kind for row in _WAITS if row.channel.search(channel)), "")
    match kind:
        case "fuse":
            return f"{_NO_SIGNAL} It waits for a FUSE file system. {_fuse(mounts)}"
        case "nfs":
            named = ", ".join(mounts.nfs) or "no NFS mount is visible from here"
            return f"{_NO_SIGNAL} It waits for an NFS server ({named}): bring the server back, or unmount with `umount -f`."
        case "nvidia" | "amd":
            return f"{_NO_SIGNAL} It waits inside the GPU's driver: drain the node, then reset the GPU; if that is refused, reboot."
        case _:
            place = channel or "not told by the kernel"
            return f"{_NO_SIGNAL} What it waits for ({place}) has to come; otherwise drain the node and reboot it."


def _fuse(mounts: Mounts) -> str:
    busy = [one for one in mounts.fuse if one.waiting > 0]
    if not busy:
        return "Its mount was not found; `grep -r . /sys/fs/fuse/connections/*/waiting` shows whose requests wait."
    return " ".join(
        f"{one.mount} has {one.waiting} requests waiting; `echo 1 > /sys/fs/fuse/connections/{one.number}/abort` fails them all, "
        "and frees what waits: that is the operator's decision."
        for one in busy[:3]
    )
