"""Scenes of one training over four nodes of a real Slurm cluster, each node a host of its own: for drill_slurm.py.

The injector knows the truth from the kernel and the training itself; the patrol's events are read only to know when to heal, and to score.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from sites import wait_for
from slurm_cluster import HOSTS, Cluster

from rankpatrol.drill.scene import Scene, build

NODES, PER_NODE, SPARE = 4, 2, 1
PORT = 29500
# Eight Pythons import torch on whatever this machine has, twice.
ALL_S = 400.0
LAUNCH = """
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PATH={bin}:$PATH OMP_NUM_THREADS=1 RANKPATROL_LEASES={base}/leases RANKPATROL_LEMONS=
exec srun -N{nodes} --ntasks-per-node=1 {python} -m rankpatrol run {options} \\
  torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d --rdzv-endpoint $HEAD:{port} --rdzv-id $SLURM_JOB_ID \\
  {script} --data {data} --checkpoints {checkpoints} --resume '{{checkpoint}}' --steps {steps} --save-every 10 --step-seconds {step_s} \\
  --workers 1
"""


class Training:
    """One training of four nodes as a batch job: `srun … rankpatrol run torchrun …`, and nothing else is set up."""

    def __init__(self, cluster: Cluster, *options: str, patrol: str = "", steps: int = 50) -> None:
        self.cluster, ranks = cluster, NODES * PER_NODE
        dice = random.SystemRandom()
        folder = cluster.base / "training"
        folder.mkdir()
        self.scene = Scene(folder=folder, ranks=ranks, rank=dice.randrange(ranks), step=dice.randint(12, 28), steps=steps)
        build(self.scene)
        script = LAUNCH.format(
            base=cluster.base,
            bin=Path(sys.executable).parent,
            nodes=NODES,
            per_node=PER_NODE,
            port=PORT,
            python=sys.executable,
            options=f"--patience 20s --checkpoints {self.scene.checkpoints} {patrol}",
            script=self.scene.script,
            data=self.scene.data,
            checkpoints=self.scene.checkpoints,
            steps=steps,
            step_s=self.scene.step_s,
        )
        self.submit = lambda: cluster.submit(script, f"-N{NODES}", "--ntasks-per-node=1", "-c4", "-D", str(folder), *options)
        self.job = ""

    def start(self) -> None:
        self.job = self.submit()

    def folder(self, restart: int = 0) -> Path:
        """The step's number is not always 0 again: Slurm counts on where a node's part of the old step has not ended."""
        runs = self.scene.folder / "rankpatrol-runs"
        return next(runs.glob(f"train-slurm-{self.job}.*.{restart}"), runs / f"train-slurm-{self.job}.0.{restart}")

    def events(self, restart: int = 0) -> list[dict]:
        path = self.folder(restart) / "events.jsonl"
        with contextlib.suppress(OSError):
            return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        return []

    def of(self, kind: str, restart: int = 0) -> list[dict]:
        return [event for event in self.events(restart) if event["kind"] == kind]

    def step(self, restart: int = 0) -> int:
        return max((event["step"] for event in self.of("progress", restart)), default=0)

    def await_step(self, step: int, restart: int = 0, within_s: float = 180.0) -> None:
        wait_for(lambda: self.step(restart) >= step, within_s)

    def ranks(self) -> dict[int, int]:
        """The training's processes by rank, by the pids they have here."""
        found = {}
        for pid in _pids():
            with contextlib.suppress(OSError, ValueError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                # Not the launchers, and not the shims (`python -I -S …`).
                if str(self.scene.script).encode() in words and b"--nnodes" not in words and b"-I" not in words and not _is_loader(pid):
                    found[int(_variables(pid)["RANK"])] = pid
        return found

    def node_of(self, pid: int) -> str:
        """The host in whose pid namespace it runs."""
        names = (f"n{number}" for number in range(1, self.cluster.nodes + 1))
        return next(name for name in names if _namespace(int(self.cluster.call(str(HOSTS), "pid", name).stdout)) == _namespace(pid))

    def output(self) -> str:
        return self.cluster.output(self.job)


def bad_block(cluster: Cluster) -> str:
    """A block of data stops in mid-read on one node: named with its node, sealed from all nodes, ended, resumed in place, finished."""
    training = Training(cluster)
    scene = training.scene
    block, kept = scene.block(), scene.block().with_name("kept")
    block.rename(kept)
    os.mkfifo(block)
    fifo = os.open(block, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.write(fifo, kept.read_bytes()[:100])
        training.start()
        wait_for(lambda: _reader_of(block), 200)
        where = training.node_of(_reader_of(block))
        wait_for(lambda: training.of("action"), 120)
        kept.replace(block)
        cluster.await_state(training.job, "COMPLETED", within_s=ALL_S)
    finally:
        os.close(fifo)
    verdict = training.of("verdict")[0]
    assert verdict["cause"] == "data_loader_worker_stuck", verdict
    assert verdict["culprit_ranks"] == [scene.rank], verdict
    assert f"({where})" in verdict["sentence"], (where, verdict["sentence"])
    _whole(training)
    closed = training.of("incident_closed")[0]
    assert closed["how"] == "ended", closed
    assert training.of("resumed"), "the second attempt started from a checkpoint"
    assert scene.last_checkpoint.exists()
    assert training.of("job_ended")[0]["exit_code"] == 0
    onset = max(event["at_unix_s"] for event in training.of("progress") if event["attempt"] == 0)
    stages = _stages(training, onset)
    back = [e["at_unix_s"] for e in training.of("progress") if e["attempt"] > 0 and e["step"] >= scene.step]
    stages["beyond the old step"] = back[0] - onset
    return f"rank {scene.rank} on {where}: {_said(stages)}; {_goodput(training.folder())}"


def requeue(cluster: Cluster) -> str:
    """No restart in place is left: a rank dies as of bad memory, and the job is queued again without that node, and goes on from there."""
    training = Training(cluster, "--requeue", patrol="--max-restarts 0")
    training.start()
    training.await_step(training.scene.step)
    pid = training.ranks()[training.scene.rank]
    where = training.node_of(pid)
    onset = time.time()
    os.kill(pid, signal.SIGBUS)
    wait_for(lambda: _restarts(training) == 1, 60)
    queued = time.time() - onset
    wait_for(lambda: cluster.state(training.job) == "RUNNING", 120)
    running = time.time() - onset
    cluster.await_state(training.job, "COMPLETED", within_s=ALL_S)
    assert cluster.slurm("squeue", "-h", "-a", "-t", "all", "-j", training.job, "-o", "%x") == where
    verdict = training.of("verdict")[0]
    assert (verdict["verdict"], verdict["culprit_ranks"]) == ("crash", [training.scene.rank]), verdict
    _whole(training)
    ordered = [(event["what"], event["target"]) for event in training.of("action") if event["done"] is None]
    assert [what for what, _ in ordered] == ["confirm_checkpoint", "confirm_job", "requeue_job"], ordered
    assert ordered[-1][1] == f"{training.job} without {where}", ordered
    assert [event["how"] for event in training.of("incident_closed")] == ["requeued"]
    (again,) = training.of("attempt_started", 1)
    assert where not in {place["node"] for place in again["ranks"].values()}, again
    (resumed,) = training.of("resumed", 1)
    assert resumed["step"] >= 10, resumed
    assert training.scene.last_checkpoint.exists()
    stages = {**_stages(training, onset), "queued again": queued, "running again": running}
    stages["all ranks"] = again["at_unix_s"] - onset
    lost = training.step()
    stages["beyond the old step"] = next(e["at_unix_s"] for e in training.of("progress", 1) if e["step"] > lost) - onset
    return f"rank {training.scene.rank} on {where}: {_said(stages)}; {_goodput(training.folder(), training.folder(1))}"


def cable_cut(cluster: Cluster) -> str:
    """One node's cable is pulled: Slurm starts the job elsewhere while its old ranks still run there. Neither run's patrol touches them."""
    # Where the patience ends before Slurm has noticed, what can be reached is restarted in place; it waits for the node.
    return _cut(Training(cluster, "--requeue"), (), ("resume_from", "end_attempt"))


def cable_cut_at_last(cluster: Cluster) -> str:
    """The same, but the patrol has no restart left and less patience than Slurm: it queues the job again, and Slurm not twice."""
    training = Training(cluster, "--requeue", patrol="--patience 5s --max-restarts 0")
    return _cut(training, ("confirm_checkpoint", "confirm_job", "requeue_job"))


def _cut(training: Training, *allowed: tuple[str, ...]) -> str:
    cluster = training.cluster
    training.start()
    training.await_step(training.scene.step)
    where = next(node for pid in training.ranks().values() if (node := training.node_of(pid)) != "n1")
    ranks = {rank: pid for rank, pid in training.ranks().items() if training.node_of(pid) == where}
    run_dir = _run_dir(training, where)
    onset = time.time()
    cluster.call(str(HOSTS), "cut", where)
    told = {"suspected": 0.0, "queued again": 0.0, "running again": 0.0}
    by_request: set[str] = set()
    try:
        wait_for(lambda: _watch(run_dir, by_request) or _restarts(training) == 1, 120)
        told["queued again"] = time.time() - onset
        wait_for(lambda: _watch(run_dir, by_request) or cluster.state(training.job) == "RUNNING", 120)
        told["running again"] = time.time() - onset
        training.await_step(training.scene.step, restart=1)
        left = [rank for rank, pid in ranks.items() if Path(f"/proc/{pid}").exists()]
        before = training.of("action")
    finally:
        cluster.call(str(HOSTS), "heal", where)
    healed = time.time() - onset
    wait_for(lambda: _watch(run_dir, by_request) or not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()), 120)
    told["old ranks gone"] = time.time() - onset
    cluster.await_state(training.job, "COMPLETED", within_s=ALL_S)
    suspicions = [event for event in (*training.of("alert"), *training.of("verdict")) if where in event["sentence"]]
    told["suspected"] = suspicions[0]["at_unix_s"] - onset if suspicions else float("nan")
    assert not by_request, f"a shim on the cut node was asked to end: {by_request}"
    assert training.of("action") == before, "after the cable was back nothing was done any more"
    assert not training.of("action", 1), training.of("action", 1)
    deeds = tuple(event["what"] for event in before if event["done"] is None)
    assert deeds in allowed, before
    assert _restarts(training) == 1
    alone = training.folder() / "nodes" / where / "events.jsonl"
    assert not alone.exists() or '"action"' not in alone.read_text()
    assert where not in {place["node"] for place in training.of("attempt_started", 1)[0]["ranks"].values()}
    assert training.scene.last_checkpoint.exists()
    said = f"{where} cut: {_said(told)} (cable back after {healed:.0f} s); the patrol's own deeds: {', '.join(deeds) or 'none'}"
    return f"{said}; old ranks {left} of {sorted(ranks)} ran on beside the new run; {_goodput(training.folder(), training.folder(1))}"


def _run_dir(training: Training, node: str) -> Path:
    """The run directory of the old run on a node: local to it, but the hosts of this fixture share /tmp."""
    for path in Path("/tmp").glob("rankpatrol-*/job.json"):
        with contextlib.suppress(OSError, ValueError):
            spec = json.loads(path.read_text())
            if spec["job_dir"] == str(training.folder()) and spec["cluster"]["node"] == node:
                return path.parent
    raise AssertionError(f"no run directory of {training.folder()} on {node}")


def _watch(run_dir: Path, by_request: set[str]) -> bool:
    """Note which of the node's shims have ended their rank since somebody asked them to."""
    for path in run_dir.glob("exits/*.json"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(path.read_text())["by_request"]:
                by_request.add(path.name)
    return False


def _restarts(training: Training) -> int:
    return int(training.cluster.slurm("squeue", "-h", "-a", "-t", "all", "-j", training.job, "-O", "RestartCnt:|").rstrip("|") or 0)


def _stages(training: Training, onset: float, restart: int = 0) -> dict[str, float]:
    """Seconds from the onset to the first event of each kind."""
    named = (("named", "alert"), ("verdict", "verdict"), ("sealed", "bundle_sealed"), ("acted", "action"), ("ended", "attempt_ended"))
    found = {stage: training.of(kind, restart) for stage, kind in named}
    return {stage: events[0]["at_unix_s"] - onset for stage, events in found.items() if events}


def _said(stages: dict[str, float]) -> str:
    return ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in stages.items())


def _goodput(*folders: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rankpatrol", "goodput", "--json", *map(str, folders)], capture_output=True, text=True, check=True
    )
    (account,) = json.loads(done.stdout)["runs"]
    parts = ", ".join(f"{part} {seconds:.0f}" for part, seconds in account["parts_s"].items() if seconds >= 0.5)
    return f"of {account['wall_s']:.0f} s: {parts}; MTTR {account['mean_time_to_recover_s']}"


def _whole(training: Training, restart: int = 0) -> None:
    """Every bundle stands, and holds every rank of every node and each other node's facts."""
    for event in training.of("bundle_sealed", restart):
        path = training.folder(restart) / event["path"]
        done = subprocess.run([sys.executable, "-m", "rankpatrol", "bundle", "verify", str(path)], capture_output=True, check=False)
        assert done.returncode == 0, done.stdout.decode()[-300:]
        manifest = json.loads((path / "manifest.json").read_text())
        assert len(manifest["ranks"]) == training.scene.ranks, manifest["ranks"]
        assert {rank["node"] for rank in manifest["ranks"]} == {f"n{number}" for number in range(1, NODES + 1)}
        assert len({name.split("/")[1] for name in manifest["files"] if name.startswith("host/n")}) == NODES - 1


def _reader_of(path: Path) -> int:
    """The loader process that has this file open; 0 where there is none."""
    for pid in _pids():
        with contextlib.suppress(OSError):
            if _is_loader(pid) and str(path) in {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}:
                return pid
    return 0


def _is_loader(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "pt_data_worker"


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _variables(pid: int) -> dict[str, str]:
    pairs = (pair.decode(errors="replace").partition("=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    return {name: value for name, _, value in pairs}


def _namespace(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())
