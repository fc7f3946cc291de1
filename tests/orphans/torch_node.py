"""The second node of a training, in a pid namespace of its own: its rank dies with its launcher, its loader processes live on.

Speaks in lines: "stuck" once the peers wait, then, for a line on stdin, it scans, releases, and prints what came of it as JSON.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, reap
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, JobState, JobWord, Policy
from rankpatrol.orphans.scan import Scanner

FOLDER, CGROUP, COMMAND = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
JOB = "77"
POLICY = Policy(grace_s=0.5)


class Scheduler:
    """Says that job 77 has ended, once it has."""

    ended_unix_s = None

    def words(self, jobs):
        state = JobState.LIVE if self.ended_unix_s is None else JobState.ENDED
        return {JOB: JobWord(job=JOB, state=state, by="test", ended_unix_s=self.ended_unix_s)} if JOB in jobs else {}

    def tie_of(self, process):
        return None


def named(name):
    """Pids of this namespace's processes of that name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == name:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def in_fifo(pid):
    try:
        return Path(f"/proc/{pid}/wchan").read_text() == "wait_for_partner"
    except OSError:
        return False


def wait_until(true, what, limit_s=120):
    until = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def main():
    scheduler = Scheduler()
    scanner = Scanner(scheduler, devices=(f"{FOLDER}/nvidia*",), namespace=lambda: INITIAL_PID_NAMESPACE)
    patrol = OrphanPatrol(scanner, POLICY, evidence=FOLDER / "evidence")

    with (FOLDER / "node1.log").open("w") as log:
        torchrun = subprocess.Popen(["sh", "-c", f'echo 0 > {CGROUP}/cgroup.procs && exec "$@"', "sh", *COMMAND], stdout=log, stderr=log)
    wait_until(lambda: len(list(filter(in_fifo, named("pt_data_worker")))) == 2, "no loader process got stuck")
    live = patrol.look()
    loaders = named("pt_data_worker")
    rank = int(Path(f"/proc/{loaders[0]}/stat").read_text().rpartition(")")[2].split()[1])
    print("stuck", flush=True)
    sys.stdin.readline()
    for pid in (torchrun.pid, rank):
        os.kill(pid, signal.SIGKILL)
    torchrun.wait()
    while Path(f"/proc/{rank}").exists():
        os.waitpid(-1, os.WNOHANG)  # we are init here
    scheduler.ended_unix_s = time.time()
    print("dead", flush=True)
    sys.stdin.readline()
    patrol.look()
    judged = patrol.look()
    what = plan(judged, POLICY)
    began = time.time()
    released = reap(what, patrol, ReapRules(kill_switches=()))
    told = {
        "while_live": sorted(one.verdict for one in live),
        "loaders": loaders,
        "planned": [one.process.pid for one in what.orphans],
        "released": [one.process.pid for one in released if one.done],
        "signals": [one.signals for one in released],
        "why": [one.why for one in judged],
        "stacks": ["__getitem__" in Path(one.evidence).read_text() for one in released],
        "began": began,
        "ended": time.time(),
    }
    print(json.dumps(told), flush=True)


main()
