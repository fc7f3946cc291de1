"""How long one scan takes on a node with 5,000 processes, a few of which hold a device; and with an NVML that never answers.

Beside it, in the same run, what people use instead. On a busy machine the wall times say little: compare the CPU.

Run as root: the processes live in a pid namespace of their own, which takes them along.
"""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankpatrol.orphans.jobs import RunJobs
from rankpatrol.orphans.nvml import GpuWitness, ask_nvml
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, JobState, JobWord, ProcessSeen, RecordTie
from rankpatrol.orphans.scan import Scanner

PROCESSES = 5000
HOLDERS = 40
OTHERS = {"ls": "ls -l /proc/[0-9]*/fd", "lsof": "lsof -n -P -b -w"}


def crowd(device: Path) -> None:
    """5,000 processes with the three usual descriptors, some of which have the device too."""
    for number in range(PROCESSES):
        opened = [(os.POSIX_SPAWN_OPEN, 3, str(device), os.O_RDWR, 0)] if number < HOLDERS else []
        closed = [(os.POSIX_SPAWN_CLOSE, inherited) for inherited in range(4, 256)]
        os.posix_spawnp("sleep", ["sleep", "600"], os.environ, file_actions=[*opened, *closed])


class Ended:
    """Says that every job has ended: then the scan looks around most."""

    def words(self, jobs: frozenset[str]) -> dict[str, JobWord]:
        return {job: JobWord(job=job, state=JobState.ENDED, by="this benchmark", ended_unix_s=0.0) for job in jobs}

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:  # ruff: ignore[ARG002] - the port's words
        return None


def tell(what: str, scanner: Scanner) -> float:
    """CPU seconds of a scan."""
    scanner.scan()
    seconds, cpu_s = [], []
    for _ in range(7):
        began = time.process_time()
        seen = scanner.scan()
        cpu_s.append(time.process_time() - began)
        seconds.append(seen.seconds)
        assert len(seen.processes) == HOLDERS, len(seen.processes)
    usual_s = statistics.median(cpu_s)
    print(
        f"{what}: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s, {usual_s:.3f} s of CPU a scan (bar: 0.5 s)",
        flush=True,
    )
    return usual_s


def compare(ours_s: float) -> None:
    """The same question asked with other tools: who has what open, of all processes."""
    for name, command in OTHERS.items():
        if shutil.which(command.split()[0]) is None:
            continue
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(["sh", "-c", f"{command} > /dev/null 2>&1"], check=False)
        wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"{name}: {wall_s:.3f} s, {cpu_s:.3f} s of CPU: {cpu_s / ours_s:.1f} times a scan's", flush=True)


def measure(folder: Path) -> None:
    device = folder / "nvidia0"
    device.touch()
    os.environ["SLURM_JOB_ID"] = "77"
    crowd(device)
    hung = GpuWitness(lambda: ask_nvml(["sleep", "600"], deadline_s=600))
    common = {"devices": (f"{folder}/nvidia*",), "namespace": lambda: INITIAL_PID_NAMESPACE}
    ours_s = tell(f"{PROCESSES} processes, {HOLDERS} holders", Scanner(RunJobs(), **common))
    compare(ours_s)
    tell("holders of ended jobs", Scanner(Ended(), **common))
    tell("NVML that never answers", Scanner(RunJobs(), gpus=hung.look, **common))


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
