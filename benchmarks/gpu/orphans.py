"""On a machine with an NVIDIA GPU and torch: an orphan that holds 2 GiB is found, proved and released; its neighbour is left alone.

    sudo .venv/bin/python benchmarks/gpu/orphans.py        # about one minute, five at most; prints PASS or what went wrong

A parent takes 2 GiB on GPU 0 in the cgroup of a made-up Slurm job 77, forks a child that keeps the context's descriptors, and is killed.
A live neighbour holds 1 GiB. The scheduler's word comes from this script. Only processes that it started are ever signalled.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.orphans.nvml import GpuWitness
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, reap
from rankpatrol.orphans.records import JobState, JobWord, Policy, ProcessSeen, RecordTie
from rankpatrol.orphans.scan import Scanner

JOB, LIVE_JOB = "77", "80"
POLICY = Policy(grace_s=1.0)
PARENT = """
import os, signal, sys, torch
memory = torch.empty(2 << 30, dtype=torch.uint8, device="cuda:0")
torch.cuda.synchronize()
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""
NEIGHBOUR = """
import signal, sys, torch
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda number, frame: print("heard", number, flush=True))
memory = torch.ones(1 << 30, dtype=torch.uint8, device="cuda:0")
print("ready", flush=True)
sys.stdin.readline()
print("sum", int(memory[:1000].sum()), flush=True)
"""


class Word:
    """The scheduler of this check."""

    ended_unix_s: float | None = None

    def words(self, jobs: frozenset[str]) -> dict[str, JobWord]:
        live = {job: JobWord(job=job, state=JobState.LIVE, by="this check") for job in (JOB, LIVE_JOB)}
        ended = {JOB: JobWord(job=JOB, state=JobState.ENDED, by="this check", ended_unix_s=self.ended_unix_s)} if self.ended_unix_s else {}
        return {job: word for job, word in {**live, **ended}.items() if job in jobs}

    def tie_of(self, process: ProcessSeen) -> RecordTie | None:  # ruff: ignore[ARG002] - the port's words
        return None


def cgroup(job: str) -> Path:
    mount = next(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if line.split()[2] == "cgroup2")
    home = Path(mount) / f"rankpatrol-check-{os.getpid()}" / "slurmstepd.scope" / f"job_{job}" / "step_0"
    home.mkdir(parents=True)
    return home


def start(program: str, home: Path) -> "subprocess.Popen[str]":
    shell = f'echo 0 > {home}/cgroup.procs && exec "$@"'
    words = ["sh", "-c", shell, "sh", sys.executable, "-c", program]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def used_bytes(witness: GpuWitness) -> int:
    gpus = witness.fresh(10.0)
    assert not isinstance(gpus, Missing), f"NVML: {gpus.reason}"
    used = gpus[0].used_bytes
    assert isinstance(used, int), "NVML does not tell the memory in use"
    return used


def check(folder: Path, homes: dict[str, Path], started: "list[subprocess.Popen[str]]") -> None:
    witness, word = GpuWitness(), Word()
    idle = used_bytes(witness)
    neighbour = start(NEIGHBOUR, homes[LIVE_JOB])
    started.append(neighbour)
    assert neighbour.stdout is not None
    assert neighbour.stdin is not None
    assert neighbour.stdout.readline() == "ready\n", "the neighbour could not take its memory"
    with_neighbour = used_bytes(witness)
    parent = start(PARENT, homes[JOB])
    started.append(parent)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    held = used_bytes(witness)
    print(f"GPU 0: {idle >> 20} MiB idle, {with_neighbour >> 20} with the neighbour, {held >> 20} with the parent")
    patrol = OrphanPatrol(Scanner(word, gpus=witness.look), POLICY, evidence=folder, gpus=witness.fresh)
    live = patrol.look()
    assert patrol.last is not None
    assert patrol.last.initial_namespace, "this is a container: nothing is ever released here; run the check on the node itself"
    assert not any(one.proof for one in live), [one.why for one in live]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    word.ended_unix_s = time.time()
    time.sleep(1.5)
    orphaned = used_bytes(witness)
    print(f"parent killed: {orphaned >> 20} MiB in use, its child {child} lives")
    assert orphaned > held - (512 << 20), "the driver gave the memory back although the child holds the descriptors"
    patrol.look()
    judged = patrol.look()
    for one in judged:
        print(f"  {one.process.id.pid if one.process else 'GPU'}: {one.verdict} (row {one.rows}): {one.why}")
    what = plan(judged, POLICY)
    assert [one.process.pid for one in what.orphans] == [child], what
    began = time.monotonic()
    released = reap(what, patrol, ReapRules(kill_switches=()))
    print(f"released in {time.monotonic() - began:.2f} s: {released[0].why}")
    assert all(one.done for one in released), released
    after = used_bytes(witness)
    print(f"{after >> 20} MiB in use")
    assert after < with_neighbour + (256 << 20), "the memory is not back"
    neighbour.stdin.write("\n")
    neighbour.stdin.flush()
    said = neighbour.stdout.read()
    assert said == "sum 1000\n", f"the neighbour was touched: {said!r}"


def main() -> int:
    if os.geteuid() != 0:
        print("run it as root: it makes cgroups")
        return 64
    started: list[subprocess.Popen[str]] = []
    homes: dict[str, Path] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            homes.update((job, cgroup(job)) for job in (JOB, LIVE_JOB))
            check(Path(folder), homes, started)
    except AssertionError as problem:
        print(f"FAIL: {problem}")
        return 1
    finally:
        for process in started:
            process.kill()
            process.wait()
        for home in homes.values():
            for left in (home / "cgroup.procs").read_text().split():  # a child that was not released
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(left), signal.SIGKILL)
            for each in (home, home.parent, home.parent.parent, home.parent.parent.parent):
                with contextlib.suppress(OSError):
                    each.rmdir()
    print("PASS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
