"""What an attached patrol costs: step times of one training with and without `rankpatrol watch`, in turns, then the patrol's own CPU.

Usage: python benchmarks/attached.py [WINDOWS] [RANKS]

The step time is compared within one training of two ranks, window by window, so that two trainings' luck does not stand between them.
The patrol's CPU is of all its processes, also of those that ended, over WATCHED_S of a healthy training of RANKS ranks, once it
has learned them (the first look at each rank reads more).
"""

import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from overhead import quiet, training

from exchange import TICKS, end_in_order

WINDOW_S, SETTLED_S = 12.0, 4.0
WATCHED_S, LEARNED_S = 60.0, 40.0


class Steps:
    """The times at which rank 0 told a step."""

    def __init__(self, job: "subprocess.Popen[str]") -> None:
        self._job = job
        self.told: list[float] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._job.stdout is not None
        for line in self._job.stdout:
            if "step" in line:
                self.told.append(time.perf_counter())

    def wait_for(self, many: int) -> None:
        until = time.monotonic() + 600
        while len(self.told) < many:
            if self._job.poll() is not None or time.monotonic() > until:
                sys.exit(f"the training came to {len(self.told)} steps: exit code {self._job.poll()}")
            time.sleep(0.2)

    def mean_s(self, since: float, until: float) -> float:
        within = [at for at in self.told if since <= at <= until]
        if len(within) < 2:
            sys.exit(f"only {len(within)} steps were told in a window of {until - since:.0f} s")
        return (within[-1] - within[0]) / (len(within) - 1)


@contextmanager
def trained(folder: Path, *, ranks: int, steps: int, step_s: float) -> Iterator[tuple[int, Steps]]:
    """A training, and its launcher's pid; ended at the end."""
    command = training(folder, ranks=ranks, steps=steps, step_s=step_s, workers=1)
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet())
    try:
        steps_told = Steps(job)
        steps_told.wait_for(10)
        yield job.pid, steps_told
    finally:
        job.terminate()
        job.wait(60)


@contextmanager
def watched(pid: int, folder: Path) -> Iterator[int]:
    """The patrol beside it, and its pid; ended at the end."""
    words = [sys.executable, "-m", "rankpatrol", "watch", "--pid", str(pid), "--job-dir", str(folder / f"watch-{time.time_ns()}")]
    patrol = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield patrol.pid
        if patrol.poll() is not None:
            assert patrol.stderr is not None
            sys.exit(f"the patrol left: exit code {patrol.returncode}\n{patrol.stderr.read()}")
    finally:
        patrol.send_signal(signal.SIGINT)
        patrol.communicate(timeout=60)


def family_cpu_s(pid: int) -> float:
    """CPU seconds of a process, of its children that it has waited for, and of those that live."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(int(ticks) for ticks in own[11:15]) / TICKS
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += sum(family_cpu_s(int(child)) for child in (task / "children").read_text().split())
    return total


def step_times(folder: Path, windows: int) -> None:
    ratios = []
    with trained(folder, ranks=2, steps=int(windows * 2 * (WINDOW_S + SETTLED_S) / 0.008), step_s=0.0) as (pid, steps):
        for number in range(windows):
            means = {}
            for which in ("without", "with") if number % 2 else ("with", "without"):
                with watched(pid, folder) if which == "with" else nullcontext():
                    means[which] = window(steps)
            ratios.append(means["with"] / means["without"])
            without, with_it = (means[which] * 1e3 for which in ("without", "with"))
            print(f"window {number}: a step takes {without:.2f} ms without, {with_it:.2f} ms with: {ratios[-1]:.3f}", flush=True)
    print(f"step time with / without: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


def window(steps: Steps) -> float:
    time.sleep(SETTLED_S)  # the patrol's own start, or its end, is no part of it
    began = time.perf_counter()
    time.sleep(WINDOW_S)
    return steps.mean_s(began, time.perf_counter())


def patrols_cpu(folder: Path, ranks: int) -> None:
    with trained(folder, ranks=ranks, steps=600, step_s=1.0) as (pid, _), watched(pid, folder) as patrol:
        time.sleep(LEARNED_S)
        before, began = family_cpu_s(patrol), time.perf_counter()
        time.sleep(WATCHED_S)
        share = (family_cpu_s(patrol) - before) / (time.perf_counter() - began)
        resident_mb = int(Path(f"/proc/{patrol}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
        print(f"patrol at {ranks} ranks, attached: {share:.2%} of a core, {resident_mb:.0f} MB")


def main() -> None:
    end_in_order()
    windows = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    with tempfile.TemporaryDirectory() as name:
        step_times(Path(name), windows)
        patrols_cpu(Path(name), ranks)


if __name__ == "__main__":
    main()
