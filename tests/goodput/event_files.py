"""Writes event files as the contract has them, for a job of four ranks on one node."""

import json

from rankpatrol.goodput.account import account_of, runs_of
from rankpatrol.goodput.story import launch_of

START = 1_800_000_000.0


class Job:
    """Lines of one events.jsonl; times in seconds after START, in whatever order they are added."""

    def __init__(self, command="train"):
        self._command, self._attempt, self._events = command, 0, []

    def at(self, when, kind, **fields):
        self._events.append({"at_unix_s": START + when, "kind": kind, "attempt": self._attempt, **fields})
        return self

    def starts(self):
        return self.at(0, "job_started", command=[self._command], ranks=4).attempt(0, 0)

    def attempt(self, number, when, scheduler_restarts=0):
        self._attempt = number
        ranks = {str(rank): {"node": f"n{rank // 4}", "pid": 100 + rank, "shim_pid": 90 + rank} for rank in range(4)}
        return self.at(when, "attempt_started", ranks=ranks, scheduler_restarts=scheduler_restarts, torchrun_restarts=number)

    def steps(self, begin, steps):
        """One step a second, told when it is done."""
        for place, step in enumerate(steps):
            self.at(begin + place + 1, "progress", step=step)
        return self

    @property
    def lines(self):
        return [json.dumps(event) for event in sorted(self._events, key=lambda event: event["at_unix_s"])]

    def content(self):
        return "\n".join(self.lines).encode()


def alert(onset, ranks):
    return {
        "incident": 1,
        "why": "",
        "cause": "rank_blocked",
        "suspect_ranks": ranks,
        "onset_unix_s": START + onset,
        "sentence": "rank sleeps",
    }


def verdict(onset, ranks, verdict="hang"):
    named = {"verdict": verdict, "culprit_ranks": ranks, "onset_unix_s": START + onset}
    return {"incident": 1, "cause": "rank_blocked", "sentence": "rank sleeps", **named}


def account(*jobs):
    """The account of one run."""
    launches = [launch_of(f"job{place}", job.content(), place) for place, job in enumerate(jobs)]
    (run,) = runs_of(launches)
    return account_of(run)
