"""Releases one orphan whose GPU gives its memory back, or does not: FOLDER VICTIM CGROUP back|kept|shared|silent. In a pid namespace."""

import json
import os
import sys
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, reap
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, GpuSeen, JobState, JobWord, Policy
from rankpatrol.orphans.scan import Scanner

FOLDER, VICTIM, CGROUP, HOW = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]
DEVICE = FOLDER / "nvidia0"


class EndedLongAgo:
    def words(self, jobs):
        return {"77": JobWord(job="77", state=JobState.ENDED, by="test", ended_unix_s=time.time() - 600)} if "77" in jobs else {}

    def tie_of(self, process):
        return None


def start(home):
    home.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    words = [VICTIM, str(FOLDER / "log"), str(home / "cgroup.procs"), "0", "plain", str(writer), str(DEVICE)]
    pid = os.posix_spawn(VICTIM, words, {})
    assert os.read(reader, 1) == b"r"
    return pid


def main():
    DEVICE.touch()
    orphan = start(CGROUP / "slurmstepd.scope" / "job_77" / "step_0")
    if HOW == "shared":
        start(CGROUP)

    def gpus(*_):
        if HOW == "silent":
            return Missing("NVML is silent")
        held = HOW == "kept" or Path(f"/proc/{orphan}/stat").read_text().split()[2] != "Z"
        fields = {"index": 0, "uuid": "", "name": "", "total_bytes": 80 << 30, "busy_percent": 0, "processes": ()}
        return (GpuSeen(device=str(DEVICE), used_bytes=40 << 30 if held else 0, **fields),)

    scanner = Scanner(EndedLongAgo(), devices=(str(DEVICE),), gpus=gpus, namespace=lambda: INITIAL_PID_NAMESPACE)
    patrol = OrphanPatrol(scanner, Policy(), evidence=FOLDER / "evidence", gpus=gpus, stack=lambda _: Missing("not here"))
    patrol.look()
    released = reap(plan(patrol.look(), Policy()), patrol, ReapRules(memory_s=0.3, kill_switches=()))
    print(json.dumps([{"done": one.done, "why": one.why, "signals": one.signals} for one in released]))


main()
