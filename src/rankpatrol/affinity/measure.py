"""Measures this very machine: latency and bandwidth from each node's CPUs to each node's memory, on one thread."""

import array
import contextlib
import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterator

from rankpatrol.affinity.kernel import MPOL_BIND, set_memory_policy
from rankpatrol.affinity.machine import Machine
from rankpatrol.core.records import Missing, Record

_LINE_BYTES = 64
_STEPS = 1 << 20
_COPIES = 3
# A chain of loads, each giving the address of the next: `loop: p = *p; if (--n) goto loop; return p`. Python's own steps take longer
# than the memory does. By machine, as little-endian words.
_CHASE = {
    "x86_64": bytes.fromhex("488b3f48ffce75f84889f8c3"),
    "aarch64": bytes.fromhex("000040f9210400f1c1ffff54c0035fd6"),
}


class NodeSpeed(Record, frozen=True):
    """From one node's CPUs to one node's memory: a load that no cache answers, and a plain copy by one thread."""

    from_node: int
    to_node: int
    latency_ns: float | Missing
    copy_gb_per_s: float | Missing


def measure(machine: Machine, allowed: frozenset[int], *, buffer_bytes: int = 256 << 20) -> Iterator[NodeSpeed]:
    """Every pair that we may use; a second or two each. Each runs on a thread of its own, whose binding ends with it."""
    for near in machine.with_cpus():
        cpus = near.cpus & allowed
        for far in machine.nodes.values():
            if not far.has_memory:
                continue
            why = f"no CPU of node {near.number} is allowed here" if not cpus else ""
            yield (
                NodeSpeed(near.number, far.number, Missing(why), Missing(why))
                if why
                else _pair(near.number, cpus, far.number, buffer_bytes)
            )


def _pair(near: int, cpus: frozenset[int], far: int, buffer_bytes: int) -> NodeSpeed:
    found: list[NodeSpeed] = []

    def work() -> None:
        try:
            os.sched_setaffinity(0, {min(cpus)})
            set_memory_policy(MPOL_BIND, [far])
            with mmap.mmap(-1, buffer_bytes) as buffer:
                with contextlib.suppress(OSError):  # a kernel without huge pages: the page tables are measured too
                    buffer.madvise(mmap.MADV_HUGEPAGE)
                found.append(NodeSpeed(near, far, _latency_ns(buffer), _copy_gb_per_s(buffer)))
        except (OSError, MemoryError, ValueError) as problem:
            said = Missing(f"memory of node {far} cannot be had: {problem}")
            found.append(NodeSpeed(near, far, said, said))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def _latency_ns(buffer: mmap.mmap) -> float | Missing:
    code = _CHASE.get(os.uname().machine)
    if code is None:
        return Missing(f"there is no measuring loop for {os.uname().machine}")
    base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    lines = len(buffer) // _LINE_BYTES
    _chain(buffer, base, lines)
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as problem:
        return Missing(f"this system lets nobody write code into memory ({problem.strerror})")
    with page:
        page.write(code)
        chase = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        at = chase(base, lines // 8)
        began = time.perf_counter_ns()
        chase(at, _STEPS)
        return (time.perf_counter_ns() - began) / _STEPS


def _chain(buffer: mmap.mmap, base: int, lines: int) -> None:
    """Each line holds the address of another, all of them in one circle whose order no prefetcher follows (Hull and Dobell 1962)."""
    words = memoryview(buffer).cast("Q")
    step = _LINE_BYTES // 8
    mask, at = lines - 1, 0
    order = array.array("Q", bytes(8 * lines))
    for number in range(lines):
        order[number] = at
        at = (at * 1664525 + 1013904223) & mask
    for number in range(lines):
        words[step * order[number]] = base + _LINE_BYTES * order[(number + 1) & mask]
    words.release()


def _copy_gb_per_s(buffer: mmap.mmap) -> float:
    """Half of the buffer onto the other; bytes read and written both count once."""
    half = len(buffer) // 2
    base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    ctypes.memset(base, 1, len(buffer))
    best = min(_timed_copy(base, half) for _ in range(_COPIES))
    return 2 * half / best / 1e9


def _timed_copy(base: int, half: int) -> float:
    began = time.perf_counter()
    ctypes.memmove(base + half, base, half)
    return time.perf_counter() - began
