"""How long one scan takes on a node with 5,000 processes, a few of which hold a device; and with an NVML that never answers.

Run as root: the processes live in a pid namespace of their own, which takes them along.
"""

import ctypes
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.orphans.jobs import RunJobs
from rankpatrol.orphans.nvml import GpuWitness, ask_nvml
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE
from rankpatrol.orphans.scan import Scanner

PROCESSES = 5000
HOLDERS = 40


def crowd(device: Path) -> None:
    """5,000 forked processes with the three usual descriptors, some files, and some with the device."""
    for number in range(PROCESSES):
        if os.fork() == 0:
            if number < HOLDERS:
                os.open(device, os.O_RDWR)
            ctypes.CDLL(None).pause()
            os._exit(0)


def measure(folder: Path) -> None:
    device = folder / "nvidia0"
    device.touch()
    crowd(device)
    scanner = Scanner(RunJobs(), devices=(f"{folder}/nvidia*",), namespace=lambda: INITIAL_PID_NAMESPACE)
    scanner.scan()
    quick = [scanner.scan() for _ in range(7)]
    assert all(len(scan.processes) == HOLDERS for scan in quick), [len(scan.processes) for scan in quick]
    print(
        f"{len(quick[0].living)} processes, {HOLDERS} holders: median {statistics.median(scan.seconds for scan in quick):.3f} s,", end=" "
    )
    print(f"worst {max(scan.seconds for scan in quick):.3f} s (bar: 0.5 s)")
    hung = GpuWitness(lambda: ask_nvml(["sleep", "600"], deadline_s=600))
    deaf = Scanner(RunJobs(), devices=(f"{folder}/nvidia*",), namespace=lambda: INITIAL_PID_NAMESPACE, gpus=hung.look)
    slow = [deaf.scan() for _ in range(7)]
    assert all(isinstance(scan.gpus, Missing) for scan in slow)
    print(f"the same with an NVML that never answers: median {statistics.median(scan.seconds for scan in slow):.3f} s")


def main() -> None:
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
        os._exit(0)
    if os.geteuid() != 0:
        print("skipped: it takes root to make a pid namespace")
        return
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        os.spawnlp(os.P_WAIT, "unshare", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, __file__, folder)
        print(f"({time.monotonic() - began:.0f} s in all)")


if __name__ == "__main__":
    main()
