"""The driver's word (NVML), asked in a child that can be left behind: on a sick GPU these calls may never return."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence

from rankpatrol.affinity.machine import DriverWord, Witness

LIBRARY = "libnvidia-ml.so.1"
_WORDS = 16  # of 64 bits: 1024 CPUs or nodes
_SCOPE_NODE = 0
_MOST_USERS = 256
_MOST_BYTES = 1 << 20


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t of NVML 9.2 and later."""

    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t since NVML 11.2."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def ask(mig: Sequence[str] = (), *, deadline_s: float = 5.0, library: str = LIBRARY) -> DriverWord:
    """What NVML says of every GPU, and whose these MIG devices are. Never raises, and never takes longer than the deadline."""
    ours, childs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(childs, library, list(mig))
    os.close(childs)
    try:
        text = _read(ours, deadline_s)
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
    if text is None:
        return DriverWord({}, {}, f"NVML did not answer within {deadline_s:g} s")
    try:
        said = json.loads(text.decode())
    except ValueError:
        return DriverWord({}, {}, "NVML's reader ended without an answer")
    witness = {address: Witness(frozenset(one["cpus"]), frozenset(one["nodes"])) for address, one in said["gpus"].items()}
    users = {address: frozenset(one["users"]) for address, one in said["gpus"].items() if one["users"]}
    return DriverWord(witness, said["mig"], said["problem"], users)


def _reap(pid: int) -> None:
    """It has gone or goes now; in D state it cannot, and whoever inherits it reaps it then."""
    until = time.monotonic() + 1.0
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until:
            time.sleep(0.01)


def _read(descriptor: int, deadline_s: float) -> Optional[bytes]:
    """All of it up to its end, or None at the deadline."""
    until = time.monotonic() + deadline_s
    text = b""
    while len(text) < _MOST_BYTES:
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        chunk = os.read(descriptor, 65536)
        if not chunk:
            break
        text += chunk
    return text


def _answer(descriptor: int, library: str, mig: List[str]) -> None:
    """The child's life."""
    said: Dict[str, Any] = {"gpus": {}, "mig": {}, "problem": None}
    try:
        _ask_library(ctypes.CDLL(library), mig, said)
    except OSError:
        said["problem"] = "there is no NVML here"
    except AttributeError as problem:
        said["problem"] = f"this NVML lacks a call: {problem}"
    finally:
        with contextlib.suppress(OSError):
            os.write(descriptor, json.dumps(said).encode())
        os._exit(0)


def _ask_library(nvml: Any, mig: List[str], said: Dict[str, Any]) -> None:
    code = nvml.nvmlInit_v2()
    if code != 0:
        said["problem"] = f"NVML does not start (error {code})"
        return
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
            address = address_of(nvml, handle)
            if address:
                said["gpus"][address] = {"cpus": _cpus(nvml, handle), "nodes": _nodes(nvml, handle), "users": users_of(nvml, handle)}
    for uuid in mig:
        part, whole = ctypes.c_void_p(), ctypes.c_void_p()
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(part)) != 0:
            continue
        if nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, ctypes.byref(whole)) == 0:
            said["mig"][uuid] = address_of(nvml, whole)


def address_of(nvml: Any, handle: Any) -> Optional[str]:
    """In sysfs's form: NVML writes eight digits of domain, sysfs four (more only where they are needed)."""
    pci = _Pci()
    if nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) != 0:
        return None
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _cpus(nvml: Any, handle: Any) -> List[int]:
    words = (ctypes.c_ulonglong * _WORDS)()
    return _bits(words) if nvml.nvmlDeviceGetCpuAffinity(handle, ctypes.c_uint(_WORDS), words) == 0 else []


def _nodes(nvml: Any, handle: Any) -> List[int]:
    words = (ctypes.c_ulonglong * _WORDS)()
    scope = ctypes.c_uint(_SCOPE_NODE)
    return _bits(words) if nvml.nvmlDeviceGetMemoryAffinity(handle, ctypes.c_uint(_WORDS), words, scope) == 0 else []


def users_of(nvml: Any, handle: Any) -> List[int]:
    """Processes that compute there. A driver whose record has another size gives junk: whoever uses the list looks for pids it knows."""
    room = ctypes.c_uint(_MOST_USERS)
    records = (_Process * _MOST_USERS)()
    if not hasattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3"):
        return []
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(room), records) != 0:
        return []
    return [records[at].pid for at in range(min(room.value, _MOST_USERS))]


def _bits(words: Iterable[int]) -> List[int]:
    return [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def mig_words(texts: Sequence[str]) -> FrozenSet[str]:
    """The MIG devices that lists of visible devices name in their present form (MIG-<UUID>)."""
    words = {word.strip() for text in texts for word in text.split(",")}
    return frozenset(word for word in words if word.startswith("MIG-") and not word.startswith("MIG-GPU-"))
