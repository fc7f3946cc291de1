"""Scans a process that truly hangs in the kernel, before and after a SIGKILL that it cannot take: FOLDER PID."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from rankpatrol.core.records import Missing
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.records import INITIAL_PID_NAMESPACE, JobState, JobWord, Policy, RecordTie
from rankpatrol.orphans.scan import Scanner

FOLDER, PID = Path(sys.argv[1]), int(sys.argv[2])
TIE = RecordTie(job="train", attempt=0, rank=3)


class EndedLongAgo:
    def words(self, jobs):
        return {job: JobWord(job=job, state=JobState.ENDED, by="test", ended_unix_s=time.time() - 600) for job in jobs}

    def tie_of(self, process):
        return TIE


def looks(policy, number):
    scanner = Scanner(EndedLongAgo(), devices=(f"{FOLDER}/nvidia*",), namespace=lambda: INITIAL_PID_NAMESPACE)
    patrol = OrphanPatrol(scanner, policy, evidence=FOLDER)
    for _ in range(number):
        found = next(one for one in patrol.look() if one.process and one.process.id.pid == PID)
        yield {
            "verdict": found.verdict,
            "why": found.why,
            "advice": found.advice,
            "proven": found.proof is not None,
            "memory_read": not isinstance(found.process.environment, Missing),
            "kill_pending": found.process.kill_pending,
        }
        time.sleep(0.05)


long_enough = list(looks(Policy(stuck_for_s=0.1), 6))
os.kill(PID, signal.SIGKILL)
killed = list(looks(Policy(kill_pending_s=0.05), 3))
print(json.dumps({"long": long_enough, "killed": killed}))
