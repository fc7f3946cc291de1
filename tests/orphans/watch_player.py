"""The agent's watch over a rank that died with its shim, in a pid namespace that is made to pass for the node's: FOLDER POLICY."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from rankpatrol.agent.orphan_watch import OrphanWatch
from rankpatrol.agent.roster import read_attempt
from rankpatrol.launch.rundir import JobSpec, RankPlace, RunDir
from rankpatrol.orphans import scan
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE
from rankpatrol.system.process import identify

FOLDER, POLICY = Path(sys.argv[1]), sys.argv[2]
RANK = """
import os, signal, sys
os.setsid()
os.open(sys.argv[1], os.O_RDWR)
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


def start(device, run_dir):
    """A rank as its shim starts it: in a session of its own, with a child that inherits its device."""
    environment = {**os.environ, "RANKPATROL_RUN_DIR": str(run_dir), "RANK": "3"}
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(device)], stdout=subprocess.PIPE, text=True, env=environment)
    return rank, int(rank.stdout.readline())


def alive(pid):
    return os.waitpid(pid, os.WNOHANG) == (0, 0)  # we are init here: whoever lost its parent is our child


def main():
    device = FOLDER / "nvidia0"
    device.touch()
    os.environ["RANKPATROL_DEVICES"] = str(device)
    scan.read_namespace = lambda: INITIAL_PID_NAMESPACE
    run_dir = RunDir(FOLDER / "run")
    for room in ("ranks", "exits", "spool"):
        (run_dir.path / room).mkdir(parents=True)
    spec = JobSpec(job="train", job_dir=str(FOLDER), command=("x",), policy=POLICY, patience_s=1, checkpoints=None, started_unix_s=1.0)
    run_dir.write("job.json", spec)
    rank, loader = start(device, run_dir.path)
    stranger, strangers_child = start(device, FOLDER / "elsewhere")
    names = ("local_rank", "world_size", "torchrun_restarts", "scheduler_restarts")
    place = RankPlace(
        attempt=0,
        rank=3,
        node=os.uname().nodename,
        shim_pid=4_000_000,
        shim_start_ticks=1,
        pid=rank.pid,
        start_ticks=identify(rank.pid).start_ticks,
        started_unix_s=time.time(),
        **dict.fromkeys(names, 1),
    )
    run_dir.write("ranks/0.3.json", place)
    told = []
    teller = SimpleNamespace(
        voice=SimpleNamespace(say=lambda *_: None),
        journal=SimpleNamespace(tell=lambda kind, attempt, **fields: told.append({"kind": kind, "attempt": attempt, **fields})),
        courier=SimpleNamespace(send=lambda deed: deed()),
    )
    watch = OrphanWatch(spec, run_dir, teller)
    watch.attempt_over(read_attempt(run_dir, 0))
    watch.settle(10)
    while_live = list(told)
    for process in (rank, stranger):
        process.kill()
        process.wait()
    watch.attempt_over(read_attempt(run_dir, 0))
    watch.settle(10)
    lives = {"loader": alive(loader), "stranger": alive(strangers_child)}
    print(json.dumps({"while_live": while_live, "told": told, "loader": loader, "lives": lives}))


main()
