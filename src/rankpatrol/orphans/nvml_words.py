"""Which of NVML's lists may be believed. Pure.

Driver 535.54.03 grew the process record by 8 bytes under the same name: readers saw pids 0 and 4294967295 among others. And pids of
another namespace are numbers that mean somebody else here.
"""

from rankpatrol.core.records import Missing
from rankpatrol.orphans.records import GpuProcess, GpuSeen, ProcessSeen, Scan


def impossible_pid(scan: Scan) -> str:
    """Why all of NVML's lists are dropped in this scan, or an empty word: one such number shows a reader out of step."""
    for gpu in () if isinstance(scan.gpus, Missing) else scan.gpus:
        for one in () if isinstance(gpu.processes, Missing) else gpu.processes:
            if not 2 <= one.pid <= scan.pid_max:
                return f"NVML names pid {one.pid} on GPU {gpu.index}, which no process can have: driver and nvidia-ml-py do not fit"
    return ""


def trusted(gpu: GpuSeen, scan: Scan) -> tuple[GpuProcess, ...] | Missing:
    """This GPU's list, or why it cannot be believed."""
    if isinstance(gpu.processes, Missing):
        return gpu.processes
    if not scan.initial_namespace:
        return Missing("NVML names pids of the initial namespace, and this is another one")
    if reason := impossible_pid(scan):
        return Missing(reason)
    gone = [one.pid for one in gpu.processes if one.pid not in scan.living]
    if gone and not holders_of(gpu, scan):
        return Missing(f"NVML names pid {gone[0]} on GPU {gpu.index}, which is not there, and nobody has {gpu.device} open")
    return gpu.processes


def holders_of(gpu: GpuSeen, scan: Scan) -> list[ProcessSeen]:
    """Who has this GPU's own device file open, as the kernel says."""
    return [process for process in scan.processes if not isinstance(process.devices, Missing) and gpu.device in process.devices]
