"""What GPUs say beside a slow spell, as sentences: support, never a finding of their own."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from rankpatrol.core.records import Missing
from rankpatrol.formats.xid import Xid


class Gpu(Protocol):
    """What is read of a sample (`collect.gpus.GpuSample`)."""

    @property
    def address(self) -> str: ...
    @property
    def sm_clock_mhz(self) -> int | Missing: ...
    @property
    def sm_clock_most_mhz(self) -> int | Missing: ...
    @property
    def temperature_c(self) -> int | Missing: ...
    @property
    def slowed_by(self) -> tuple[str, ...] | Missing: ...
    @property
    def uncorrected_errors(self) -> int | Missing: ...
    @property
    def pids(self) -> tuple[int, ...]: ...


def witness(gpus: Iterable[Gpu], rank_of_pid: Mapping[int, int]) -> tuple[str, ...]:
    """A sentence for each GPU that is held back or has uncorrectable errors, with the rank that computes on it where that is known."""
    return tuple(line for gpu in gpus for line in _lines(gpu, rank_of_pid))


def driver_errors(xids: Iterable[Xid], *, since_boot_s: float) -> tuple[str, ...]:
    """A sentence for each error that the driver has reported since then."""
    recent = {(xid.address, xid.number): xid for xid in xids if xid.at_boot_s is not None and xid.at_boot_s >= since_boot_s}
    return tuple(f"the driver reports Xid {each.number} of GPU {each.address}: {each.meaning}" for each in recent.values())


def _lines(gpu: Gpu, rank_of_pid: Mapping[int, int]) -> tuple[str, ...]:
    ranks = sorted({rank_of_pid[pid] for pid in gpu.pids if pid in rank_of_pid})
    whose = f" of rank {', '.join(map(str, ranks))}" if ranks else ""
    name = f"GPU {gpu.address}{whose}"
    lines = []
    if not isinstance(gpu.slowed_by, Missing) and gpu.slowed_by:
        lines.append(f"{name} is held back by {' and '.join(gpu.slowed_by)}{_clocks(gpu)}")
    if not isinstance(gpu.uncorrected_errors, Missing) and gpu.uncorrected_errors:
        lines.append(f"{name} has had {gpu.uncorrected_errors} uncorrectable memory errors since the driver was loaded")
    return tuple(lines)


def _clocks(gpu: Gpu) -> str:
    now, most = gpu.sm_clock_mhz, gpu.sm_clock_most_mhz
    clocks = "" if isinstance(now, Missing) or isinstance(most, Missing) else f": {now} of {most} MHz"
    heat = "" if isinstance(gpu.temperature_c, Missing) else f", {gpu.temperature_c} °C"
    return f"{clocks}{heat}" if clocks else ""
