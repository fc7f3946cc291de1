"""What the patrol costs a training: step time with and without it, in turn; then the agent's own CPU and memory.

Each round has two runs without it, too: what those differ by is the machine's noise.

Usage: python benchmarks/overhead.py [ROUNDS] [RANKS_OF_THE_AGENTS_JOB]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from exchange import cpu_s

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS, WARM_UP = 1500, 100
# Turn about, so that a machine that warms up or fills favours neither.
ORDERS = (("with", "without", "again"), ("without", "with", "again"), ("without", "again", "with"))
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


def step_seconds(command: list[str]) -> float:
    """A step's mean time once the first ones are over, by the times at which rank 0 tells them."""
    told: dict[int, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=quiet()) as job:
        assert job.stdout is not None
        for line in job.stdout:
            words = line.replace(":", " ").replace("/", " ").split()
            if "step" in words and words[words.index("step") + 1].isdigit():
                told[int(words[words.index("step") + 1])] = time.perf_counter()
    if job.returncode != 0 or STEPS not in told:
        sys.exit(f"the training failed: exit code {job.returncode}, {len(told)} steps told")
    return (told[STEPS] - told[WARM_UP]) / (STEPS - WARM_UP)


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


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
    spread = f" (from {min(ratios):.3f} to {max(ratios):.3f})" if len(ratios) > 1 else ""
    return f"median {statistics.median(ratios):.3f}{spread}"


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ratios, noise = [], []
        for number in range(rounds):
            times = {}
            for which in ORDERS[number % len(ORDERS)]:
                command = training(folder, ranks=2, steps=STEPS, step_s=0.0, workers=1)
                times[which] = step_seconds(patrolled(command, folder / f"job-{number}") if which == "with" else command)
            ratios.append(2 * times["with"] / (times["without"] + times["again"]))
            noise.append(times["again"] / times["without"])
            without = f"{times['without'] * 1e3:.2f} and {times['again'] * 1e3:.2f} ms without ({noise[-1]:.3f})"
            print(f"round {number}: a step takes {without}, {times['with'] * 1e3:.2f} ms with: {ratios[-1]:.3f}")
        print(f"step time with / without: {told(ratios)}; without / without: {told(noise)}")
        share, resident_mb = agents_cost(training(folder, ranks=ranks, steps=4000, step_s=0.5, workers=1), folder / "job-agent")
        print(f"agent at {ranks} ranks: {share:.2%} of a core, {resident_mb:.0f} MB")


if __name__ == "__main__":
    main()
