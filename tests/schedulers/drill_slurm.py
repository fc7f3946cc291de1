"""Long scenes on real Slurm clusters of this one machine, with a scorecard: `make drill-slurm`, or `drill_slurm.py SCENE…`.

The short scenes are tests. These take minutes, since Slurm's own time-outs do: a cable that is cut, daemons that freeze, an orphan that
keeps its job running, a user's scancel, a time limit, and a signal ahead of it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import many_nodes
import node_scripts
from sites import wait_for
from slurm_cluster import HOSTS, Cluster, why_not

SLEEPER = "import time\nfor _ in range(1200):\n    time.sleep(0.1)\n"
# A rank whose child holds its output open: with proctrack/linuxproc Slurm never hears that the rank is dead.
ORPHANED = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print("child", child.pid, "rank", os.getpid(), flush=True)
time.sleep(300)
"""
SAVES = """
import signal, sys, time
def save(*_):
    print("saved ahead of the time limit", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
for _ in range(1200):
    time.sleep(0.1)
"""
ASK = """
import json, sys, msgspec
from rankpatrol.core.jobs import JobStatus
from rankpatrol.core.records import Missing
from rankpatrol.schedulers.slurm import SlurmJobs, SlurmWaits
from rankpatrol.schedulers.slurm_client import SlurmClient
from rankpatrol.system.clock import SystemClock
jobs = SlurmJobs(SlurmClient(call_s=5), SystemClock(), SlurmWaits(gone_s=90, taken_s=15))
match sys.argv[1:]:
    case ["describe", job]:
        print(msgspec.json.encode(jobs.describe(job)).decode())
    case ["processes", job]:
        print(msgspec.json.encode(jobs.processes(job)).decode())
    case ["terminate", seen]:
        print(json.dumps(jobs.terminate(msgspec.json.decode(seen, type=JobStatus))))
"""


def ask(cluster: Cluster, *words: str):
    """One question to the adapter, from where the cluster can be reached."""
    return json.loads(cluster.slurm(sys.executable, "-c", ASK, *words, timeout_s=150))


def python_job(cluster: Cluster, code: str, *options: str, tasks: int = 1, run: str = "") -> str:
    script = cluster.base / "train.py"
    script.write_text(code)
    return cluster.submit(f"exec srun -n{tasks} {run}{sys.executable} -u {script}", f"-n{tasks}", *options)


def cable_cut(cluster: Cluster) -> str:
    """The node's job is started elsewhere by Slurm; who saw it before may not end the new run, and the old one is not ours to kill."""
    job = python_job(cluster, SLEEPER, "-N1", "--requeue", "-w", "n1")
    cluster.slurm("scontrol", "update", f"JobId={job}", "ReqNodeList=", check=False)
    seen = ask(cluster, "describe", job)
    cluster.call(str(HOSTS), "cut", "n1")
    try:
        wait_for(lambda: ask(cluster, "describe", job)["restarts"] == 1, 120)
        refused = ask(cluster, "terminate", json.dumps(seen))
        assert refused.startswith("nothing was done"), refused
    finally:
        cluster.call(str(HOSTS), "heal", "n1")
    return refused


def watch_elsewhere(cluster: Cluster) -> str:
    """From a node that sees nothing of the job, `watch` goes to those where it runs."""
    job = python_job(cluster, SLEEPER, "-N1", "--requeue", tasks=2)
    wait_for(lambda: ask(cluster, "describe", job)["steps"], 20)
    time.sleep(2)
    done = cluster.call(*cluster.on("hub"), sys.executable, "-m", "rankpatrol", "watch", "--job", job, "--once", "--json")
    (told,) = json.loads(done.stdout)["jobs"]
    assert (told["job"], told["world_size"], sorted(told["at"])) == (job, 2, ["0", "1"]), told
    assert "watching there, as a step of it" in done.stderr
    return f"{told['diagnosis']['verdict']}: {told['diagnosis']['sentence']}"


def slurmctld_frozen(cluster: Cluster) -> str:
    job = python_job(cluster, SLEEPER, "-N1", "--requeue")
    seen = ask(cluster, "describe", job)
    with cluster.frozen("slurmctld"):
        now = ask(cluster, "describe", job)
        refused = ask(cluster, "terminate", json.dumps(seen))
        assert now["state"] == "unknown", now
        assert refused.startswith("nothing was done"), refused
        assert ask(cluster, "processes", job)[0]["told_by"] == "cgroup"
    wait_for(lambda: ask(cluster, "describe", job)["state"] == "running", 60)
    assert ask(cluster, "terminate", json.dumps(seen)) == ""
    return refused


def slurmd_frozen(cluster: Cluster) -> str:
    """Slurm starts the job elsewhere once its node does not answer; who saw it before may not end the new run."""
    job = python_job(cluster, SLEEPER, "-N1", "--requeue", "-w", cluster.node(1))
    cluster.slurm("scontrol", "update", f"JobId={job}", "ReqNodeList=", check=False)
    seen = ask(cluster, "describe", job)
    with cluster.frozen("slurmd1"):
        before = {each["process"]["pid"] for each in ask(cluster, "processes", job)}
        wait_for(lambda: ask(cluster, "describe", job)["restarts"] == 1, 120)
        refused = ask(cluster, "terminate", json.dumps(seen))
        assert refused.startswith("nothing was done"), refused
        now = ask(cluster, "processes", job)
        left = before & {each["process"]["pid"] for each in now if isinstance(now, list)}
    return f"{refused}; of {len(before)} old processes {len(left)} were still there"


def orphan(cluster: Cluster) -> str:
    """The rank is dead, its child holds its output, and Slurm says RUNNING: the child is found by its environment."""
    job = python_job(cluster, ORPHANED, "-N1", "--requeue")
    wait_for(lambda: "child" in cluster.output(job), 20)
    _, child, _, rank = cluster.output(job).split()[:4]
    os.kill(int(rank), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{rank}").exists() or " Z " in Path(f"/proc/{rank}/stat").read_text(), 10)
    time.sleep(5)
    assert cluster.state(job) == "RUNNING", cluster.state(job)
    found = ask(cluster, "processes", job)
    assert int(child) in [each["process"]["pid"] for each in found if each["told_by"] == "environ"], found
    said = ask(cluster, "terminate", json.dumps(ask(cluster, "describe", job)))
    left = ask(cluster, "processes", job)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(child), signal.SIGKILL)
    assert said == "" or "the job is COMPLETING" in said, said
    assert int(child) in [each["process"]["pid"] for each in left], left
    return f"rank dead, Slurm said RUNNING, its child was found by its environment; scancel: {said or 'done'}, and left the child"


def job_finished_meanwhile(cluster: Cluster) -> str:
    job = python_job(cluster, "import time; time.sleep(6)", "-N1", "--requeue")
    seen = ask(cluster, "describe", job)
    cluster.await_state(job, "COMPLETED")
    refused = ask(cluster, "terminate", json.dumps(seen))
    assert refused == "nothing was done: the job is COMPLETED now", refused
    return refused


def user_scancel(cluster: Cluster) -> str:
    job = _patrolled(cluster, SLEEPER)
    cluster.slurm("scancel", job)
    cluster.await_state(job, "CANCELLED")
    return _nobody_is_blamed(cluster, "ordered by SIGTERM")


def time_limit(cluster: Cluster) -> str:
    job = _patrolled(cluster, SLEEPER, "--time=1")
    cluster.await_state(job, "TIMEOUT", within_s=150)
    return _nobody_is_blamed(cluster, "ordered by SIGTERM")


def signal_ahead(cluster: Cluster) -> str:
    """--signal=USR1@45: the training saves and ends well, and that is no crash."""
    job = _patrolled(cluster, SAVES, "--time=1", "--signal=USR1@45")
    cluster.await_state(job, "COMPLETED", within_s=120)
    assert "saved ahead" in cluster.output(job)
    return _nobody_is_blamed(cluster, "finished", "ordered by SIGUSR1")


def _patrolled(cluster: Cluster, code: str, *options: str) -> str:
    run = f"{sys.executable} -m rankpatrol run --no-probe --job-dir {cluster.base}/patrol "
    job = python_job(cluster, code, "-N1", "--requeue", *options, run=run)
    wait_for(lambda: _agent_is_up(cluster), 30)
    return job


def _agent_is_up(cluster: Cluster) -> bool:
    job = cluster.base / "patrol" / "job.json"
    return job.exists() and (Path(json.loads(job.read_text())["run_dir"]) / "agent.json").exists()


def _nobody_is_blamed(cluster: Cluster, *reasons: str) -> str:
    wait_for(lambda: "job_ended" in _kinds(cluster), 30)
    events = _events(cluster)
    assert not {"alert", "verdict", "action"} & set(_kinds(cluster)), _kinds(cluster)
    assert events[-1]["reason"] in reasons, events[-1]
    return f"no alert, job_ended: {events[-1]['reason']}"


def _events(cluster: Cluster) -> list[dict[str, object]]:
    path = cluster.base / "patrol" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _kinds(cluster: Cluster) -> list[object]:
    return [event["kind"] for event in _events(cluster)]


SCENES: dict[str, tuple[Callable[[Cluster], str], dict[str, object]]] = {
    "job-finished-meanwhile": (job_finished_meanwhile, {}),
    "slurmctld-frozen": (slurmctld_frozen, {}),
    "slurmd-frozen": (slurmd_frozen, {}),
    "cable-cut": (cable_cut, {"hosts": True}),
    "watch-elsewhere": (watch_elsewhere, {"hosts": True}),
    "orphan": (orphan, {"track": "linuxproc"}),
    "user-scancel": (user_scancel, {}),
    "time-limit": (time_limit, {}),
    "signal-ahead": (signal_ahead, {}),
    "node-scripts": (node_scripts.node_scripts, {"hosts": True, "nodes": 1, "more": node_scripts.SETTINGS}),
    "many-nodes": (many_nodes.bad_block, {"hosts": True, "nodes": many_nodes.NODES}),
    "many-nodes-cut": (many_nodes.cable_cut, {"hosts": True, "nodes": many_nodes.NODES + many_nodes.SPARE}),
    "many-nodes-cut-at-last": (many_nodes.cable_cut_at_last, {"hosts": True, "nodes": many_nodes.NODES + many_nodes.SPARE}),
    "many-nodes-requeue": (many_nodes.requeue, {"hosts": True, "nodes": many_nodes.NODES + many_nodes.SPARE}),
}


@contextlib.contextmanager
def a_cluster(**options: object) -> Iterator[Cluster]:
    base = Path(tempfile.mkdtemp(prefix="rp-slurm-", dir="/tmp"))
    cluster = Cluster(base, **{"nodes": 2, **options})
    try:
        node_scripts.prepare(cluster)
        cluster.up()
        os.environ["SLURM_CONF"] = cluster.environment["SLURM_CONF"]
        yield cluster
    finally:
        cluster.down()
        if "KEEP" not in os.environ:
            shutil.rmtree(base, ignore_errors=True)


def main(names: list[str]) -> int:
    if (reason := why_not()) is not None:
        print(f"no Slurm cluster: {reason}", file=sys.stderr)
        return 3
    if unknown := set(names) - SCENES.keys():
        print(f"no such scene: {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}", file=sys.stderr)
        return 64
    failed = 0
    for name in names or SCENES:
        play, options = SCENES[name]
        began = time.monotonic()
        try:
            with a_cluster(**options) as cluster:
                said = f"passed  {play(cluster)}"
        except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as problem:
            failed += 1
            said = f"FAILED  {problem}"
        print(f"{name:<24}{time.monotonic() - began:6.1f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
