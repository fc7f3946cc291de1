"""state.json: the job as it is now, for `rankpatrol status` and for whoever reads it."""

from typing import TYPE_CHECKING

import msgspec

from rankpatrol.analysis.waits import classify
from rankpatrol.system.files import write_atomic

if TYPE_CHECKING:
    from rankpatrol.agent.agent import Agent


def write_state(agent: "Agent", job_ended: str | None = None) -> None:
    """Have state.json replaced. A full or hanging disk costs the file, never the round."""
    attempt, incident = agent.attempt, agent.desk.state
    state = {
        "at_unix_s": round(agent.clock.unix_s(), 3),
        "job": agent.spec.job,
        "command": agent.spec.command,
        "policy": agent.spec.policy,
        "patience_s": agent.spec.patience_s,
        "ended": job_ended,
        "attempt": attempt.number if attempt else None,
        "world_size": attempt.world_size() if attempt else None,
        "step": agent.eyes.best_step(),
        "ranks": _ranks(agent),
        "incident": incident,
        "checkpoints": agent.checkpoints.latest(),
    }
    content = msgspec.json.format(msgspec.json.encode(state))
    agent.courier.send(lambda: write_atomic(agent.job_dir / "state.json", content), instead_of="state.json")


def _ranks(agent: "Agent") -> list[dict[str, object]]:
    """Rank by rank; what a rank waits in is known only of the last close look, and only while something is odd."""
    attempt = agent.attempt
    if attempt is None:
        return []
    looked = {sample.rank: classify(sample).what for sample in agent.eyes.looks[-1].ranks} if agent.eyes.looks else {}
    now_s = agent.clock.mono_s()
    rows: list[dict[str, object]] = []
    for place in attempt.places:
        seen = agent.judge.seen.get(place.rank)
        ended = attempt.exits.get(place.rank)
        still_s = None if seen is None or ended else round(max(0.0, now_s - seen.stirred_at_s), 1)
        rows.append(
            {
                "rank": place.rank,
                "node": place.node,
                "pid": place.pid,
                "exit_status": ended.exit_status if ended else None,
                "still_for_s": still_s,
                "step": seen.activity.step if seen else None,
                "at": looked.get(place.rank),
            }
        )
    return rows
