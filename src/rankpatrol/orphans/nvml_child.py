"""`python -m rankpatrol.orphans.nvml_child`: what NVML says now, as one JSON list. A process of its own: a call may never return."""

import ctypes
import importlib
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from rankpatrol.core.records import Missing
from rankpatrol.orphans.records import GpuProcess, GpuSeen

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Print the GPUs, or on stderr why they cannot be told."""
    # Whoever asked may end before NVML answers. A call that hangs in the driver is beyond this signal too.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        sys.stderr.write("the package nvidia-ml-py is not installed: pip install '.[gpu]' in rankpatrol's clone")
        return 1
    try:
        nvml.nvmlInit()
        gpus = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as problem:
        sys.stderr.write(f"NVML: {problem}")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(gpus))
    return 0


def _gpu(nvml: Any, index: int) -> GpuSeen:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(call: Callable[[Any], Any]) -> Any:
        """One answer; what an old driver or a lost GPU refuses is Missing."""
        try:
            return call(handle)
        except nvml.NVMLError as problem:
            return Missing(f"NVML: {problem}")

    memory, load = ask(nvml.nvmlDeviceGetMemoryInfo), ask(nvml.nvmlDeviceGetUtilizationRates)
    minor, mig = ask(nvml.nvmlDeviceGetMinorNumber), ask(nvml.nvmlDeviceGetMigMode)
    uuid, name = ask(nvml.nvmlDeviceGetUUID), ask(nvml.nvmlDeviceGetName)
    return GpuSeen(
        index=index,
        uuid="" if isinstance(uuid, Missing) else str(uuid),
        name="" if isinstance(name, Missing) else str(name),
        device=f"/dev/nvidia{index if isinstance(minor, Missing) else minor}",
        total_bytes=memory if isinstance(memory, Missing) else memory.total,
        used_bytes=memory if isinstance(memory, Missing) else memory.used,
        busy_percent=load if isinstance(load, Missing) else load.gpu,
        processes=_processes(nvml, ask),
        mig=not isinstance(mig, Missing) and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
    )


def _processes(nvml: Any, ask: Callable[[Callable[[Any], Any]], Any]) -> tuple[GpuProcess, ...] | Missing:
    compute, graphics = ask(nvml.nvmlDeviceGetComputeRunningProcesses), ask(nvml.nvmlDeviceGetGraphicsRunningProcesses)
    if isinstance(compute, Missing):
        return compute
    served = ask(nvml.nvmlDeviceGetMPSComputeRunningProcesses)
    plain = [*compute, *(() if isinstance(graphics, Missing) else graphics)]
    mps = () if isinstance(served, Missing) else served
    lines = [GpuProcess(one.pid, one.usedGpuMemory) for one in plain]
    return (*lines, *(GpuProcess(one.pid, one.usedGpuMemory, mps=True) for one in mps))


if __name__ == "__main__":
    sys.exit(main())
