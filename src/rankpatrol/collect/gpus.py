"""What the driver says of each GPU (NVML): asked in a child with a deadline, since on a sick GPU these calls may never return.

`python -m rankpatrol.collect.gpus LIBRARY` is that child. What it says supports a finding, and never makes one: a GPU is as busy waiting.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.affinity.nvml import LIBRARY, address_of, users_of
from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing, Record
from rankpatrol.system.command import run

_DEADLINE_S = 3.0
_SM_CLOCK, _TEMPERATURE, _UNCORRECTED, _SINCE_BOOT = 1, 0, 1, 0
# nvmlClocksThrottleReasons of nvml.h; idle and the user's own settings are no trouble.
_SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


class GpuSample(Record, frozen=True, tag="gpu", kw_only=True):
    """One GPU at one moment. `slowed_by`: why its clocks are lower than they could be; `pids`: who computes on it, as the host counts."""

    address: str
    busy_ratio: float | Missing
    memory_used_bytes: int | Missing
    memory_bytes: int | Missing
    power_w: float | Missing
    sm_clock_mhz: int | Missing
    sm_clock_most_mhz: int | Missing
    temperature_c: int | Missing
    slowed_by: tuple[str, ...] | Missing
    uncorrected_errors: int | Missing
    pids: tuple[int, ...] = ()


class _Said(Record, frozen=True):
    """The child's answer."""

    gpus: tuple[GpuSample, ...] = ()
    problem: str | None = None


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def sample_gpus(*, deadline_s: float = _DEADLINE_S, library: str = LIBRARY) -> tuple[GpuSample, ...] | Missing:
    """Every GPU of this node, or why nothing is known. Never takes much longer than the deadline."""
    if library == LIBRARY and not Path("/dev/nvidiactl").exists():
        return Missing("there is no NVIDIA driver here")
    try:
        told = run([sys.executable, "-m", "rankpatrol.collect.gpus", library], deadline_s=deadline_s)
        said = msgspec.json.decode(told.stdout, type=_Said)
    except CommandFailed:
        return Missing(f"NVML did not answer within {deadline_s:g} s")
    except msgspec.MsgspecError:
        return Missing("NVML's reader ended without an answer")
    return said.gpus if said.problem is None else Missing(said.problem)


def _ask(library: str) -> _Said:
    try:
        nvml = ctypes.CDLL(library)
        if (code := nvml.nvmlInit_v2()) != 0:
            return _Said(problem=f"NVML does not start (error {code})")
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return _Said(gpus=tuple(gpu for index in range(count.value) if (gpu := _sample(nvml, index)) is not None))
    except (OSError, AttributeError) as problem:
        return _Said(problem=f"there is no NVML that can be asked: {problem}")


def _sample(nvml: Any, index: int) -> GpuSample | None:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    busy = _told(nvml, "nvmlDeviceGetUtilizationRates", _Rates(), lambda rates: rates.gpu / 100, handle)
    memory = _told(nvml, "nvmlDeviceGetMemoryInfo", _Memory(), lambda seen: (seen.used, seen.total), handle)
    used, most = (memory, memory) if isinstance(memory, Missing) else memory
    return GpuSample(
        address=address_of(nvml, handle) or f"GPU {index}",
        busy_ratio=busy,
        memory_used_bytes=used,
        memory_bytes=most,
        power_w=_told(nvml, "nvmlDeviceGetPowerUsage", ctypes.c_uint(), lambda power: power.value / 1000, handle),
        sm_clock_mhz=_number(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK),
        sm_clock_most_mhz=_number(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        temperature_c=_number(nvml, "nvmlDeviceGetTemperature", handle, _TEMPERATURE),
        slowed_by=_told(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong(), _slowed_by, handle),
        uncorrected_errors=_told(
            nvml, "nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong(), lambda seen: seen.value, handle, _UNCORRECTED, _SINCE_BOOT
        ),
        pids=tuple(users_of(nvml, handle)),
    )


def _number(nvml: Any, name: str, handle: Any, kind: int) -> int | Missing:
    told: int | Missing = _told(nvml, name, ctypes.c_uint(), lambda seen: int(seen.value), handle, kind)
    return told


def _slowed_by(seen: Any) -> tuple[str, ...]:
    return tuple(why for bit, why in _SLOWED_BY.items() if seen.value & bit)


def _told(nvml: Any, name: str, room: Any, read: Callable[[Any], Any], *arguments: Any) -> Any:
    """One answer, or Missing with NVML's error; old drivers lack newer calls."""
    if not hasattr(nvml, name):
        return Missing(f"this NVML has no {name}")
    plain = [ctypes.c_uint(each) if isinstance(each, int) else each for each in arguments]
    code = getattr(nvml, name)(*plain, ctypes.byref(room))
    return read(room) if code == 0 else Missing(f"{name}: NVML error {code}")


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_ask(sys.argv[1])))
