"""What the patrol costs a training: step time with and without it, side by side; then the agent's own CPU and memory.

A training's step time drifts by 5 % and more within minutes on a shared machine. So a round starts three, two of them
without the patrol, and lets them run by turns of two seconds: what those two differ by is the noise that is left.

Usage: python benchmarks/overhead.py [ROUNDS] [RANKS_OF_THE_AGENTS_JOB]
"""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from exchange import cpu_s, end_in_order
from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import ProcessId
from rankpatrol.drill.family import descendants
from rankpatrol.system.process import send_signal

EXAMPLES = Path(__file__).parents[1] / "examples"
KINDS = ("with", "without", "again")
WARM_UP, TURNS = 50, 10
TURN_S, SETTLED_S = 2.0, 0.2  # what was due while it stood still is done, and caches are filled again
STEPS = round(TURNS * (TURN_S + SETTLED_S) / 0.0025)
WATCHED_S = 30.0


def training(folder: Path, *, ranks: int, steps: int, step_s: float, workers: int) -> list[str]:
    data = folder / f"data-{ranks}-{steps}"
    if not data.exists():
        made = [sys.executable, str(EXAMPLES / "make_data.py"), str(data), "--samples", str(steps * ranks * 32)]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
    return [
        *(str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", str(ranks), str(EXAMPLES / "train.py")),
        *("--data", str(data), "--checkpoints", str(folder / f"checkpoints-{time.time_ns()}"), "--steps", str(steps)),
        *("--save-every", str(steps), "--step-seconds", str(step_s), "--workers", str(workers)),
    ]


def patrolled(command: list[str], job_dir: Path) -> list[str]:
    return [sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(job_dir), *command]


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class ByTurns:
    """A training with all that belongs to it, the patrol too, which stands still but for its turns."""

    def __init__(self, command: list[str]) -> None:
        self.job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=quiet())
        assert self.job.stdout is not None
        self._told = self.job.stdout.fileno()
        os.set_blocking(self._told, False)
        self._family: list[ProcessId] = []
        self._steps, self._took_s = 0, 0.0

    def warm_up(self) -> None:
        steps = 0
        while steps < WARM_UP:
            if self.job.poll() is not None:
                sys.exit(f"the training failed: exit code {self.job.returncode}, {steps} steps told")
            time.sleep(0.05)
            steps += self._steps_told()
        self._family = descendants(self.job.pid)
        self.stop()

    def turn(self) -> None:
        self.go_on()
        time.sleep(SETTLED_S)
        self._steps_told()
        began = time.perf_counter()
        time.sleep(TURN_S)
        steps = self._steps_told()
        self._took_s += time.perf_counter() - began
        self.stop()
        if not steps:
            sys.exit(f"no step in a turn of {TURN_S} s: exit code {self.job.poll()}")
        self._steps += steps

    def step_s(self) -> float:
        return self._took_s / self._steps

    def stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._family:
            with suppress(ProcessChanged):
                send_signal(process, number)

    def _steps_told(self) -> int:
        told = b""
        with suppress(BlockingIOError):
            while chunk := os.read(self._told, 1 << 16):
                told += chunk
        return told.count(b"step ")


@contextmanager
def by_turns(command: list[str]) -> Iterator[ByTurns]:
    """The training once its first steps are over; ended at the end."""
    training = ByTurns(command)
    try:
        training.warm_up()
        yield training
    finally:
        training.job.terminate()
        training.go_on()
        training.job.communicate(timeout=60)


def step_times(folder: Path, number: int) -> dict[str, float]:
    with ExitStack() as stack:
        trainings = {}
        for which in random.sample(KINDS, len(KINDS)):
            command = training(folder, ranks=2, steps=STEPS, step_s=0.0, workers=1)
            words = patrolled(command, folder / f"job-{number}") if which == "with" else command
            trainings[which] = stack.enter_context(by_turns(words))
        for _ in range(TURNS):
            for which in random.sample(KINDS, len(KINDS)):
                trainings[which].turn()
        return {which: each.step_s() for which, each in trainings.items()}


def agents_cost(command: list[str], job_dir: Path) -> tuple[float, float]:
    """The agent's share of a core and its highest resident memory in MB, over WATCHED_S of a healthy training."""
    job = subprocess.Popen(patrolled(command, job_dir), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=quiet())
    try:
        while not steps_go_on(job_dir / "events.jsonl"):
            if job.poll() is not None:
                sys.exit("the training ended before its first steps")
            time.sleep(0.5)
        run_dir = Path(json.loads((job_dir / "job.json").read_text())["run_dir"])
        pid = json.loads((run_dir / "agent.json").read_text())["pid"]
        before, began = cpu_s(pid), time.perf_counter()
        time.sleep(WATCHED_S)
        share = (cpu_s(pid) - before) / (time.perf_counter() - began)
        status = Path(f"/proc/{pid}/status").read_text()
        return share, int(status.split("VmHWM:")[1].split()[0]) / 1024
    finally:
        job.terminate()
        job.wait(60)


def steps_go_on(events: Path) -> bool:
    told = events.read_text().splitlines() if events.exists() else []
    return sum('"progress"' in line for line in told) > 5


def told(ratios: list[float]) -> str:
    if len(ratios) < 2:
        return f"{ratios[0]:.3f}"
    error = statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"mean {statistics.mean(ratios):.3f} +- {error:.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    end_in_order()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios, noise = [], []
        for number in range(rounds):
            took = step_times(folder, number)
            ratios.append(2 * took["with"] / (took["without"] + took["again"]))
            noise.append(took["again"] / took["without"])
            without = f"{took['without'] * 1e3:.2f} and {took['again'] * 1e3:.2f} ms without ({noise[-1]:.3f})"
            print(f"round {number}: a step takes {without}, {took['with'] * 1e3:.2f} ms with: {ratios[-1]:.3f}", flush=True)
        print(f"step time with / without: {told(ratios)}; without / without: {told(noise)}")
        share, resident_mb = agents_cost(training(folder, ranks=ranks, steps=4000, step_s=0.5, workers=1), folder / "job-agent")
        print(f"agent at {ranks} ranks: {share:.2%} of a core, {resident_mb:.0f} MB")


if __name__ == "__main__":
    main()
