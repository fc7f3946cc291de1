"""The table of metrics: name, kind, help, labels, and where in a reading each is found. Pure; a new metric is a new row.

Every sample also bears `job_id` (the job directory's name; `job` is Prometheus's own) and `node`. Labels beside these are words of a
short list, or a rank; never a process or a step.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankpatrol.core.records import Missing
from rankpatrol.metrics.records import AgentNow, Goodput, IncidentNow, RankNow, Reading, TimesOfIncident
from rankpatrol.metrics.tally import failures_of_the_hour, steps_per_s


class Point(NamedTuple):
    """One value with its labels beside the common ones. `node` where it is another than the reading's."""

    value: float
    labels: tuple[str, ...] = ()
    node: str | None = None


Points = Iterator[Point]


class Metric(NamedTuple):
    """One row. A counter's name ends in `_total`; a summary's `points` give the count, and `sums` the sum."""

    name: str
    kind: str
    help: str
    points: Callable[[Reading], Points]
    labels: tuple[str, ...] = ()
    sums: Callable[[Reading], Points] | None = None


# Told as 0 from the start: a rate needs a first value to rise from.
_HOWS = ("recovered", "ended", "requeued", "dismissed")
_REASONS = ("finished", "failed", "ended_by_rankpatrol", "ordered")
_VERDICTS = ("hang", "crash", "slow", "stop")


def _one(value: float | None) -> Points:
    if value is not None:
        yield Point(value)


def _counts(counts: dict[str, int], known: tuple[str, ...]) -> Points:
    for word, count in {**dict.fromkeys(known, 0), **counts}.items():
        yield Point(count, (word,))


def _of_ranks(value: Callable[[RankNow], float | None]) -> Callable[[Reading], Points]:
    def points(reading: Reading) -> Points:
        for rank in reading.now.ranks:
            if (found := value(rank)) is not None:
                yield Point(found, (f"{rank.rank}",), rank.node or None)

    return points


def _words_of_ranks(word: Callable[[RankNow], str | None]) -> Callable[[Reading], Points]:
    def points(reading: Reading) -> Points:
        for rank in reading.now.ranks:
            if (found := word(rank)) is not None:
                yield Point(1, (f"{rank.rank}", found), rank.node or None)

    return points


def _of_agent(value: Callable[[AgentNow], float]) -> Callable[[Reading], Points]:
    return lambda reading: _one(None if reading.now.agent is None else value(reading.now.agent))


def _of_goodput(value: Callable[[Goodput], float | None]) -> Callable[[Reading], Points]:
    return lambda reading: _one(None if isinstance(reading.goodput, Missing) else value(reading.goodput))


def _of_last(value: Callable[[TimesOfIncident], float | None]) -> Callable[[Reading], Points]:
    return _of_goodput(lambda goodput: None if goodput.last is None else value(goodput.last))


def _info(reading: Reading) -> Points:
    agent = reading.now.agent
    yield Point(1, (reading.now.policy, agent.scheduler_job if agent else "", agent.version if agent else ""))


def _phase(reading: Reading) -> Points:
    if reading.now.phase is not None and reading.now.ended is None:
        yield Point(1, (reading.now.phase,))


def _ended(reading: Reading) -> Points:
    """`ordered by SIGTERM` and the like are one word."""
    if reading.now.ended is not None:
        yield Point(1, (reading.now.ended.split(" ")[0],))


def _silence(reading: Reading) -> Points:
    for other in () if reading.now.ended is not None else reading.now.nodes:
        if other.heard_ago_s is not None:
            yield Point(other.heard_ago_s, (), other.node)


def _open(reading: Reading) -> tuple[IncidentNow, ...]:
    standing = () if reading.now.ended is not None else (reading.now.incident, *reading.now.asides)
    return tuple(each for each in standing if each is not None and each.is_open())


def _incidents_open(reading: Reading) -> Points:
    words = ((each.diagnosis.verdict, each.diagnosis.cause, each.diagnosis.certainty, each.stage) for each in _open(reading))
    for labels, count in Counter(words).items():
        yield Point(count, labels)


def _onset(reading: Reading) -> Points:
    return _one(min((each.onset_unix_s for each in _open(reading) if each.onset_unix_s is not None), default=None))


def _suspects(reading: Reading) -> Points:
    nodes = {rank.rank: rank.node for rank in reading.now.ranks}
    named = {rank for each in _open(reading) for rank in each.diagnosis.culprit_ranks or ()}
    for rank in sorted(named):
        yield Point(1, (f"{rank}",), nodes.get(rank) or None)


def _question(reading: Reading) -> Points:
    yield Point(float(reading.now.answer_with is not None))


def _paused(reading: Reading) -> Points:
    yield Point(float(reading.now.paused is not None))


def _checkpoint(value: Callable[[Reading], float | None]) -> Callable[[Reading], Points]:
    return lambda reading: _one(value(reading) if reading.now.checkpoints_wanted else None)


def _checkpoint_known(reading: Reading) -> float | None:
    """Before the first look, and while the directory cannot be read, nobody knows."""
    seen = reading.now.checkpoints
    return None if seen.reason is not None else float(seen.newest_good is not None)


def _checkpoint_at(reading: Reading) -> float | None:
    good = reading.now.checkpoints.newest_good
    return None if good is None else good.modified_unix_s


def _checkpoint_step(reading: Reading) -> float | None:
    good = reading.now.checkpoints.newest_good
    return None if good is None else good.step


def _rejected(reading: Reading) -> float | None:
    seen = reading.now.checkpoints
    return None if seen.reason is not None else len(seen.rejected)


def _actions(reading: Reading) -> Points:
    for result, counts in (("done", reading.tally.actions_done), ("failed", reading.tally.actions_failed)):
        for what, count in counts.items():
            yield Point(count, (what, result))


def _parts(reading: Reading) -> Points:
    if not isinstance(reading.goodput, Missing):
        for part, length_s in reading.goodput.parts_s.items():
            yield Point(length_s, (part,))


_JOB = (
    Metric("job_info", "gauge", "1: the job is patrolled.", _info, ("policy", "scheduler_job", "version")),
    Metric("job_start_timestamp_seconds", "gauge", "When the patrol of the job began.", lambda reading: _one(reading.now.started_unix_s)),
    Metric("job_ended", "gauge", "1: the job is over, for this reason.", _ended, ("reason",)),
    Metric("job_phase", "gauge", "1: the phase that the job is in.", _phase, ("phase",)),
    Metric("job_ranks", "gauge", "Ranks of the job.", lambda reading: _one(reading.now.world_size)),
    Metric("job_steps", "gauge", "The step that the attempt has reached.", lambda reading: _one(reading.now.step)),
    Metric(
        "job_steps_per_second",
        "gauge",
        "Steps done in the last minute, by its seconds.",
        lambda reading: _one(None if reading.now.ended else steps_per_s(reading.tally, reading.now.at_unix_s)),
    ),
    Metric(
        "job_progress_timestamp_seconds",
        "gauge",
        "When this attempt did its last step.",
        lambda reading: _one(reading.tally.progress_unix_s),
    ),
    Metric("job_attempt_number", "gauge", "The attempt that runs, counted from 0.", lambda reading: _one(reading.now.attempt)),
    Metric("attempts_total", "counter", "Attempts that began.", lambda reading: _one(reading.tally.attempts)),
    Metric(
        "attempts_ended_total",
        "counter",
        "Attempts that are over.",
        lambda reading: _counts(reading.tally.attempts_ended, _REASONS),
        ("reason",),
    ),
    Metric(
        "brake_failures",
        "gauge",
        "Attempts that failed within the last hour; from the third on the next one pauses first.",
        lambda reading: _one(failures_of_the_hour(reading.tally, reading.now.at_unix_s)),
    ),
)
_RANKS = (
    Metric("rank_state", "gauge", "1: the state that the rank is in.", _words_of_ranks(lambda rank: rank.state), ("rank", "state")),
    Metric(
        "rank_phase",
        "gauge",
        "1: the phase that the rank's probe says it is in.",
        _words_of_ranks(lambda rank: rank.phase),
        ("rank", "phase"),
    ),
    Metric("rank_still_seconds", "gauge", "For how long the rank has not stirred.", _of_ranks(lambda rank: rank.still_for_s), ("rank",)),
    Metric("rank_steps", "gauge", "The step that the rank's log named last.", _of_ranks(lambda rank: rank.step), ("rank",)),
    Metric("rank_suspect", "gauge", "1: an open incident names this rank.", _suspects, ("rank",)),
)
_NODES = (Metric("node_silent_seconds", "gauge", "For how long the agent that judges has not heard of another node of the job.", _silence),)
_INCIDENTS = (
    Metric("incidents_open", "gauge", "Open incidents.", _incidents_open, ("verdict", "cause", "certainty", "stage")),
    Metric("incident_onset_timestamp_seconds", "gauge", "When the oldest open incident began.", _onset),
    Metric("incidents_closed_total", "counter", "Incidents that are over.", lambda reading: _counts(reading.tally.closed, _HOWS), ("how",)),
    Metric("alerts_total", "counter", "Suspicions that were told.", lambda reading: _one(reading.tally.alerts)),
    Metric(
        "verdicts_total", "counter", "Verdicts that were given.", lambda reading: _counts(reading.tally.verdicts, _VERDICTS), ("verdict",)
    ),
    Metric("actions_total", "counter", "Steps of actions, by what came of them.", _actions, ("action", "result")),
    Metric("actions_paused", "gauge", "1: nobody acts.", _paused),
    Metric(
        "pause_start_timestamp_seconds",
        "gauge",
        "Since when nobody acts.",
        lambda reading: _one(reading.now.paused.since_unix_s if reading.now.paused else None),
    ),
    Metric("question_open", "gauge", "1: an action waits for a person's answer.", _question),
    Metric(
        "bundle_seal_seconds",
        "summary",
        "Sealed bundles of evidence, and how long they took.",
        lambda reading: _one(reading.tally.bundles),
        sums=lambda reading: _one(reading.tally.sealing_s),
    ),
    Metric("seals_failed_total", "counter", "Times that evidence could not be sealed.", lambda reading: _one(reading.tally.seals_failed)),
    Metric(
        "incident_detect_seconds",
        "gauge",
        "Of the last incident: from its onset until it was noticed.",
        _of_last(lambda last: last.detect_s),
    ),
    Metric(
        "incident_name_seconds", "gauge", "Of the last incident: from its onset until a rank was named.", _of_last(lambda last: last.name_s)
    ),
    Metric(
        "incident_recover_seconds",
        "gauge",
        "Of the last incident: from its onset until the job went beyond where it had been.",
        _of_last(lambda last: last.recover_s),
    ),
)
_CHECKPOINTS = (
    Metric("checkpoint_known", "gauge", "1: a checkpoint was read and found whole; 0: none is.", _checkpoint(_checkpoint_known)),
    Metric("checkpoint_timestamp_seconds", "gauge", "When the newest good checkpoint was written.", _checkpoint(_checkpoint_at)),
    Metric("checkpoint_steps", "gauge", "The step of the newest good checkpoint.", _checkpoint(_checkpoint_step)),
    Metric("checkpoints_rejected", "gauge", "Newer checkpoints that are not good, or not yet.", _checkpoint(_rejected)),
)
_GOODPUT = (
    Metric("goodput_ratio", "gauge", "Productive time by wall time, so far.", _of_goodput(lambda goodput: goodput.ratio)),
    Metric("goodput_seconds", "gauge", "Where the wall time went, so far; work that was lost moves from part to part.", _parts, ("part",)),
)
_AGENT = (
    Metric("agent_round_timestamp_seconds", "gauge", "When the agent last finished a round.", lambda reading: _one(reading.now.at_unix_s)),
    Metric("agent_cpu_seconds_total", "counter", "CPU time of the agent and the tools that it ran.", _of_agent(lambda agent: agent.cpu_s)),
    Metric("agent_resident_bytes", "gauge", "Memory that the agent holds.", _of_agent(lambda agent: agent.resident_bytes)),
    Metric(
        "agent_backlog_records",
        "gauge",
        "Records that the job directory has not taken yet.",
        _of_agent(lambda agent: agent.backlog_records),
    ),
)
METRICS = (*_JOB, *_RANKS, *_NODES, *_INCIDENTS, *_CHECKPOINTS, *_GOODPUT, *_AGENT)
PREFIX = "rankpatrol_"
