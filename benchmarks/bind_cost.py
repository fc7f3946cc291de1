"""What binding adds to a rank's start: the plan on a large machine's tree, and the whole start under the shim, with and without."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/affinity"))
from machines import DGX_A100, Built, cards

from rankpatrol.affinity import binder
from rankpatrol.affinity.kernel import Held
from rankpatrol.affinity.plan import CORE, NODE, Want
from rankpatrol.launch.rundir import JobSpec, RunDir

ROUNDS = 41
SHIM = Path(__file__).parents[1] / "tests/affinity/shim_on_machine.py"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = DGX_A100.write(Path(folder, "a100"))
        for mode in (NODE, CORE):
            print(f"plan in mode {mode}, DGX A100 (256 CPUs, 8 nodes, 8 GPUs): {plan_ms(root, mode):.1f} ms")
        here = sorted(os.sched_getaffinity(0))
        nodes = {0: str(here[0]), 1: ",".join(map(str, here[1:] or here))}
        command_cost()
        start_cost(Built("here", nodes, cards("17@0 b1@1")).write(Path(folder, "here")), Path(folder))


def plan_ms(root: str, mode: str) -> float:
    environment = {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"}
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        ground = binder.survey([environment], root)
        binder.plan_this(environment, Held(DGX_A100.cpus, frozenset(DGX_A100.nodes), 0), Want(mode), ground)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3


def start_cost(root: str, folder: Path) -> None:
    """A rank that ends at once, with and without binding, by turns."""
    taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    start_ms(root, folder, bind=True)
    for number in range(ROUNDS):
        for bind in (number % 2 == 0, number % 2 == 1):
            taken[bind].append(start_ms(root, folder, bind=bind))
    for at, what in enumerate(("wall", "CPU")):
        added = [one[at] - other[at] for one, other in zip(taken[True], taken[False], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        before = statistics.median(one[at] for one in taken[False])
        best = min(one[at] for one in taken[True]) - min(one[at] for one in taken[False])
        said = f"binding adds {middle:.1f} ms ({low:.1f} to {high:.1f}; best of both {best:.1f})"
        print(f"a rank's start under the shim, {what}: {before:.0f} ms without; {said}")


def command_cost() -> None:
    """`rankpatrol bind -- CMD` beside CMD and a Python that does nothing, by turns. Bytecode is written, as in an installation."""
    commands = {
        "CMD alone (true)": ["true"],
        "python -c pass": [sys.executable, "-c", "pass"],
        "rankpatrol bind -- true": [sys.executable, "-m", "rankpatrol", "bind", "--", "true"],
        "the same by the slow way": [sys.executable, "-c", "from rankpatrol.cli.main import main; main()", "bind", "--", "true"],
    }
    with tempfile.TemporaryDirectory() as folder:
        words = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        taken = [{name: run_ms(command, words) for name, command in commands.items()} for _ in range(ROUNDS)][1:]
    bare = statistics.median(one["python -c pass"][1] for one in taken)
    for name in commands:
        wall, cpu = (statistics.median(one[name][at] for one in taken) for at in (0, 1))
        print(f"{name}: {wall:.0f} ms, CPU {cpu:.1f} ms, {cpu / bare:.1f} times a bare Python's")


def start_ms(root: str, folder: Path, *, bind: bool) -> tuple[float, float]:
    """Wall and CPU time."""
    run_dir = RunDir.create()
    spec = JobSpec(
        job="job",
        job_dir=str(folder),
        command=("x",),
        policy="observe",
        patience_s=180,
        checkpoints=None,
        started_unix_s=0.0,
        probe=False,
        bind=bind,
    )
    run_dir.write("job.json", spec)
    words = {"RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANKPATROL_RUN_DIR": str(run_dir.path)}
    took = run_ms([sys.executable, "-S", str(SHIM), str(os.getpid()), root, "/bin/true"], words)
    record = run_dir.path / "bindings/0.1.json"
    assert (json.loads(record.read_text())["decision"] == "bind") if bind else not record.exists()
    run_dir.remove()
    return took


def run_ms(command: list[str], words: dict[str, str]) -> tuple[float, float]:
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env={**os.environ, **words}, check=True, stderr=subprocess.DEVNULL, timeout=30)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall * 1e3, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


main()
