"""An agent goes on where an earlier one of its job stopped."""

from pathlib import Path

from rankpatrol.agent.agent import Agent
from rankpatrol.journal import read_events


def take_up(agent: Agent, spool: Path) -> None:
    """Adopt what an earlier agent has told of attempts and incidents. Raises BadInput, NoPermission."""
    told: dict[str, set[int]] = {"attempt_started": set(), "attempt_ended": set()}
    for event in read_events(spool):
        if event["kind"] in told:
            told[event["kind"]].add(event["attempt"])
    agent.adopt(told["attempt_started"], told["attempt_ended"])
