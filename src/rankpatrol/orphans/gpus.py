"""What is said of a GPU itself: lists that cannot be believed, pids that are gone, memory and load that nobody has. Pure."""

from collections.abc import Iterator

from rankpatrol.core.records import Missing
from rankpatrol.orphans.history import History
from rankpatrol.orphans.nvml_words import holders_of, impossible_pid, trusted
from rankpatrol.orphans.records import GpuSeen, Judged, Policy, Scan, Verdict

_NO_PARTS = "This GPU is in parts (MIG), which are not told apart yet: nothing is said of its processes."
_RESET = "Drain the node, then reset the GPU (`nvidia-smi --gpu-reset -i {index}`); never while another process holds a GPU."


def judge_gpus(scan: Scan, history: History, policy: Policy) -> tuple[Judged, ...]:
    """Findings on GPUs, none where all is explained."""
    if isinstance(scan.gpus, Missing):
        return ()
    if reason := impossible_pid(scan):
        advice = "NVML's lists are left out of this scan. Bring driver and nvidia-ml-py to the same release."
        dropped: tuple[Judged, ...] = (Judged(verdict=Verdict.BAD_READER, rows=(3,), why=reason, advice=advice),)
    else:
        dropped = ()
    return (*dropped, *(judged for gpu in scan.gpus for judged in _judge_gpu(gpu, scan, history, policy)))


def _judge_gpu(gpu: GpuSeen, scan: Scan, history: History, policy: Policy) -> Iterator[Judged]:
    used = gpu.used_bytes if isinstance(gpu.used_bytes, int) else None
    if gpu.mig:
        yield Judged(verdict=Verdict.UNKNOWN, rows=(1,), why=_NO_PARTS, gpu=gpu.index)
    if not scan.initial_namespace:
        return
    yield from _gone_pids(gpu, scan)
    if history.ghost_memory.get(gpu.index, 0) >= policy.ghost_scans and used is not None:
        why = f"{used / (1 << 30):.1f} GiB are in use, and in {policy.ghost_scans} scans nobody held {gpu.device}"
        advice = _RESET.format(index=gpu.index)
        yield Judged(verdict=Verdict.GHOST_MEMORY, rows=(17,), why=why, advice=advice, gpu=gpu.index, used_bytes=used)
    if history.ghost_load.get(gpu.index, 0) >= policy.ghost_scans:
        why = f"it shows {gpu.busy_percent} % load, but no memory in use and no holder: the counter is stuck, no process is there"
        yield Judged(verdict=Verdict.GHOST_TELEMETRY, rows=(18,), why=why, gpu=gpu.index, used_bytes=used)


def _gone_pids(gpu: GpuSeen, scan: Scan) -> Iterator[Judged]:
    named = trusted(gpu, scan)
    if isinstance(named, Missing):
        if not isinstance(gpu.processes, Missing) and not impossible_pid(scan):
            yield Judged(
                verdict=Verdict.BAD_READER, rows=(3,), why=named.reason, advice="This list is left out of the scan.", gpu=gpu.index
            )
        return
    for one in named:
        if one.pid not in scan.living:
            holders = ", ".join(str(process.id.pid) for process in holders_of(gpu, scan))
            why = f"NVML still names pid {one.pid}, which is gone; {gpu.device} is held by {holders}: they are what counts"
            yield Judged(verdict=Verdict.GHOST_PID, rows=(13,), why=why, gpu=gpu.index, used_bytes=one.used_bytes)
