"""Affinity and memory policy by the kernel's own interface: no numactl, no libnuma."""

from __future__ import annotations

import ctypes
import errno
import os

from rankpatrol.affinity.cpus import parse_cpus
from rankpatrol.affinity.machine import Cpus
from rankpatrol.affinity.plan import NO_MEMORY, STRICT
from rankpatrol.affinity.sysfs import read, read_cpus
from rankpatrol.affinity.tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import FrozenSet, Optional, Sequence

# System call numbers by machine: set_mempolicy, get_mempolicy (asm/unistd_64.h; asm-generic/unistd.h for arm64, riscv64, loongarch64).
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236), "riscv64": (237, 236), "loongarch64": (237, 236), "ppc64le": (261, 260)}
MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND = 0, 1, 2
_MASK_BITS = 1024
_libc = ctypes.CDLL(None, use_errno=True)


class Held(NamedTuple):
    """What a process is allowed: its affinity, the nodes whose memory it may use, and its memory policy (None: not known)."""

    cpus: Cpus
    memory_nodes: Cpus
    policy: Optional[int]


def _mask(nodes: Sequence[int]) -> "ctypes.Array[ctypes.c_ulong]":
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    if any(node >= _MASK_BITS for node in nodes):
        raise OSError(errno.EINVAL, "node numbers beyond 1023 are not known to this program")
    mask = (ctypes.c_ulong * (_MASK_BITS // width))()
    for node in nodes:
        mask[node // width] |= 1 << node % width
    return mask


def set_memory_policy(mode: int, nodes: Sequence[int]) -> None:
    """set_mempolicy(2) for this thread; children and CMD inherit it. Raises OSError."""
    numbers = _CALLS.get(os.uname().machine)
    if numbers is None:
        raise OSError(errno.ENOSYS, f"set_mempolicy has no known number on {os.uname().machine}")
    # The kernel reads one bit less than it is told (set_mempolicy(2), "maxnode").
    if _libc.syscall(ctypes.c_long(numbers[0]), ctypes.c_long(mode), _mask(nodes), ctypes.c_ulong(_MASK_BITS + 1)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"set_mempolicy: {os.strerror(number)}")


def memory_policy() -> Optional[int]:
    """This thread's policy without its flags, or None where it cannot be asked (a sandbox may forbid the call)."""
    numbers = _CALLS.get(os.uname().machine)
    mode = ctypes.c_int(-1)
    if (
        numbers is None
        or _libc.syscall(ctypes.c_long(numbers[1]), ctypes.byref(mode), None, ctypes.c_ulong(0), None, ctypes.c_ulong(0)) != 0
    ):
        return None
    return mode.value & 0xFF


def held() -> Held:
    """What this thread is allowed now."""
    return Held(frozenset(os.sched_getaffinity(0)), memory_nodes(os.getpid()), memory_policy())


def affinity(pid: int) -> Cpus:
    """A process's affinity; empty where it is gone."""
    try:
        return frozenset(os.sched_getaffinity(pid))
    except OSError:
        return frozenset()


def memory_nodes(pid: int) -> FrozenSet[int]:
    """The nodes whose memory the cpuset allows (proc_pid_status(5)); empty where that cannot be read."""
    for line in (read("/proc", str(pid), "status") or "").splitlines():
        if line.startswith("Mems_allowed_list:"):
            return parse_cpus(line.partition(":")[2])
    return frozenset()


def cpuset(root: str = "/") -> Cpus:
    """The CPUs that this process's cgroup gives (cpuset(7), both versions); empty where that cannot be read."""
    for line in (read(root, "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, name = "sys/fs/cgroup", "cpuset.cpus.effective"
        elif "cpuset" in controllers.split(","):
            folder, name = "sys/fs/cgroup/cpuset", "cpuset.effective_cpus"
        else:
            continue
        # A group without the controller has what the nearest one above it has.
        while True:
            given = read_cpus(root, folder + path.rstrip("/"), name)
            if given:
                return given
            if path in {"", "/"}:
                break
            path = os.path.dirname(path)
    return frozenset()


def bind(cpus: Cpus, memory: str, memory_node: Optional[int]) -> Optional[str]:
    """Bind this thread, and all it starts. Raises OSError where the CPUs cannot be had; returns why memory could not be held."""
    os.sched_setaffinity(0, cpus)
    if memory == NO_MEMORY or memory_node is None:
        return None
    try:
        set_memory_policy(MPOL_BIND if memory == STRICT else MPOL_PREFERRED, [memory_node])
    except OSError as problem:
        may = "; in a container it takes CAP_SYS_NICE" if problem.errno == errno.EPERM else ""
        return f"the memory policy could not be set ({problem.strerror}{may}): memory lies where it is first touched"
    return None
