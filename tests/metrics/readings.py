"""Readings of a job, as an agent would have made them, and what a scraper sees of them."""

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from rankpatrol.metrics.collector import exposition
from rankpatrol.metrics.records import Goodput, JobNow, Reading, TimesOfIncident
from rankpatrol.metrics.tally import total

NOW = 1_800_000_000.0
RANKS = [
    {"rank": rank, "node": f"n{rank // 2}", "pid": 70 + rank, "state": "training", "phase": "train_step", "still_for_s": 0.5, "step": 40}
    for rank in range(4)
]
AGENT = {"node": "n0", "version": "1.2", "cpu_s": 12.5, "resident_bytes": 40_000_000, "backlog_records": 2, "scheduler_job": "8123"}
STATE = {
    "at_unix_s": NOW,
    "job": "train",
    "command": ["torchrun", "train.py"],
    "policy": "recover",
    "started_unix_s": NOW - 900,
    "ended": None,
    "attempt": 1,
    "world_size": 4,
    "step": 41,
    "phase": "train_step",
    "ranks": RANKS,
    "incident": None,
    "paused": None,
    "answer_with": None,
    "asides": [],
    "checkpoints_wanted": False,
    "checkpoints": {"type": "missing", "reason": "no --checkpoints directory was given"},
    "agent": AGENT,
}
HANG = {"verdict": "hang", "cause": "rank_blocked", "certainty": "supported", "sentence": "rank 3 sleeps", "culprit_ranks": [3]}
INCIDENT = {"incident": 1, "attempt": 1, "stage": "judged", "onset_unix_s": NOW - 200, "diagnosis": HANG}
GOOD = {"path": "/ckpt/30", "layout": "torch", "verdict": "ok", "step": 30, "modified_unix_s": NOW - 600}
CHECKPOINTS = {"directory": "/ckpt", "newest_good": GOOD, "rejected": [{**GOOD, "verdict": "corrupt"}], "older": []}
EVENTS = [
    {"kind": "attempt_started", "attempt": 0},
    {"kind": "progress", "attempt": 0, "step": 39},
    {"kind": "alert", "attempt": 0, "incident": 1},
    {"kind": "verdict", "attempt": 0, "incident": 1, "verdict": "hang", "onset_unix_s": NOW - 300},
    {"kind": "seal_failed", "attempt": 0, "incident": 1, "why": "no space left"},
    {"kind": "bundle_sealed", "attempt": 0, "incident": 1, "seconds": 2.5},
    {"kind": "action", "attempt": 0, "incident": 1, "what": "end_attempt", "done": None},
    {"kind": "action", "attempt": 0, "incident": 1, "what": "end_attempt", "done": True},
    {"kind": "incident_closed", "attempt": 0, "incident": 1, "how": "ended"},
    {"kind": "attempt_ended", "attempt": 0, "reason": "ended_by_rankpatrol"},
    {"kind": "attempt_started", "attempt": 1},
    *({"kind": "progress", "attempt": 1, "step": 30 + place} for place in range(11)),
]


def timed(events, until=NOW):
    """One event a second, the last one now."""
    return [{"at_unix_s": until - len(events) + 1 + place, **event} for place, event in enumerate(events)]


def reading(events=(), goodput=None, **fields):
    now = msgspec.json.decode(msgspec.json.encode({**STATE, **fields}), type=JobNow)
    made = Reading(now=now, tally=total(timed(list(events))))
    return made if goodput is None else msgspec.structs.replace(made, goodput=goodput)


def full():
    """Readings in which every metric has a sample: a job in trouble, and one that is over."""
    goodput = Goodput(
        parts_s={"productive": 60.0, "stall": 40.0}, ratio=0.6, last=TimesOfIncident(detect_s=5.0, name_s=6.0, recover_s=90.0)
    )
    paused = {"since_unix_s": NOW - 60, "by": "jo", "why": "switch"}
    trouble = {"incident": INCIDENT, "paused": paused, "answer_with": "rankpatrol act 1 --yes", "checkpoints": CHECKPOINTS}
    trouble["nodes"] = [{"node": "n1", "heard_ago_s": 70.0, "problem": "cut off"}, {"node": "n2", "heard_ago_s": None}]
    return reading(EVENTS, goodput, **trouble, checkpoints_wanted=True), reading(EVENTS, job="other", ended="stopped")


def samples(*readings):
    """Each sample by its name and labels, as a scraper reads them."""
    found = {}
    for family in text_string_to_metric_families(exposition(readings).decode()):
        for sample in family.samples:
            found[sample.name, frozenset(sample.labels.items())] = sample.value
    return found


def value(found, name, **labels):
    """The one sample of this name with these labels among others."""
    wanted = set(labels.items())
    (one,) = [number for (named, has), number in found.items() if named == f"rankpatrol_{name}" and wanted <= has]
    return one


def names(found):
    return {name for name, _ in found}
