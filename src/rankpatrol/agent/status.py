"""state.json: the job as it is now, for `rankpatrol status` and for whoever reads it."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rankpatrol.agent.bindings import grouped
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.nodes.others import NodeLine
from rankpatrol.analysis.waits import classify
from rankpatrol.checkpoints.report import Selection
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import ProcessGroup
from rankpatrol.evidence.redact import redact_record
from rankpatrol.incident.records import IncidentState
from rankpatrol.judge.records import JudgeState, RankActivity
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import Binding, JobSpec
from rankpatrol.metrics.records import AgentNow
from rankpatrol.system.clock import Clock


class JobView(NamedTuple):
    """All that the state is made of."""

    spec: JobSpec
    eyes: Eyes
    judge: JudgeState
    incident: IncidentState | None
    checkpoints: Selection | Missing
    ended: str | None = None
    pause: Pause | None = None
    question: str | None = None
    asides: tuple[IncidentState, ...] = ()
    nodes: tuple[NodeLine, ...] = ()
    phase: str | None = None
    agent: AgentNow | None = None
    run_dir_full: str | None = None
    bindings: Mapping[int, Binding] = {}


def state_of(view: JobView, clock: Clock) -> bytes:
    """The content of state.json; what logs brought into its sentences is without secrets."""
    attempt = view.eyes.attempt
    state = {
        "at_unix_s": round(clock.unix_s(), 3),
        "job": view.spec.job,
        "command": view.spec.command,
        "policy": view.spec.policy,
        "patience_s": view.spec.patience_s,
        "started_unix_s": round(view.spec.started_unix_s, 3),
        "ended": view.ended,
        "attempt": attempt.number if attempt else None,
        "world_size": attempt.world_size() if attempt else None,
        "step": view.eyes.best_step(),
        "phase": view.phase,
        "ranks": _ranks(view),
        "bindings": grouped(view.bindings),
        "groups": _groups(view.eyes.groups()),
        "incident": view.incident,
        "paused": view.pause,
        "answer_with": view.question,
        "asides": view.asides,
        "nodes": view.nodes,
        "checkpoints_wanted": view.spec.checkpoints is not None,
        "run_dir_full": view.run_dir_full,
        "checkpoints": view.checkpoints,
        "agent": view.agent,
    }
    return msgspec.json.format(msgspec.json.encode(redact_record(msgspec.to_builtins(state))))


def _groups(groups: tuple[ProcessGroup, ...]) -> list[dict[str, object]]:
    """Groups of the same backend, size and time-out are one row: a large job has thousands."""
    alike: dict[tuple[str, int, float | None], list[str]] = {}
    for group in groups:
        alike.setdefault((group.backend, len(group.ranks), group.timeout_s), []).append(group.name)
    return [
        {"name": names[0], "groups": len(names), "backend": backend, "ranks": size, "timeout_s": timeout_s}
        for (backend, size, timeout_s), names in alike.items()
    ]


def _ranks(view: JobView) -> list[dict[str, object]]:
    """Rank by rank; what a rank waits in is known only of the last close look, and only while something is odd."""
    attempt = view.eyes.attempt
    if attempt is None:
        return []
    looked = {sample.rank: classify(sample).what for sample in view.eyes.looks[-1].ranks} if view.eyes.looks else {}
    rows: list[dict[str, object]] = []
    for place in attempt.places:
        seen = view.judge.seen.get(place.rank)
        ended = attempt.exits.get(place.rank)
        still_s = None if seen is None or ended else round(seen.still_s, 1)
        rows.append(
            {
                "rank": place.rank,
                "node": place.node,
                "pid": place.pid,
                "exit_status": ended.exit_status if ended else None,
                "still_for_s": still_s,
                "step": seen.activity.step if seen else None,
                "state": _state(seen.activity if seen else None, ended.exit_status if ended else None),
                "phase": seen.activity.phase if seen and not ended else None,
                "at": looked.get(place.rank),
            }
        )
    return rows


def _state(seen: RankActivity | None, exit_status: int | None) -> str | None:
    """In one word what a rank is; `gone` where nobody has told how it ended, None where it is hidden from us."""
    if exit_status is not None:
        return "ended" if exit_status == 0 else "failed"
    if seen is None:
        return None
    words = ((seen.ended, "gone"), (seen.traced, "traced"), (seen.stopped, "stopped"), (seen.joined, "training"))
    return next((word for holds, word in words if holds), "starting")
