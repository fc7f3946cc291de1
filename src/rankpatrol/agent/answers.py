"""A person's yes to the open question: a file in the run directory, written by `rankpatrol act`, taken by the agent."""

import contextlib

from rankpatrol.incident.records import IncidentState, WaitsFor
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import Answer, RunDir

ANSWER = "answer.json"


def take_answer(run_dir: RunDir) -> Answer | None:
    """The answer, once: it is removed before anything follows from it, so that it is never used twice."""
    answer = run_dir.read(ANSWER, Answer)
    if (run_dir.path / ANSWER).exists():
        with contextlib.suppress(FileNotFoundError):
            (run_dir.path / ANSWER).unlink()
    return answer


def refusal(answer: Answer, incident: IncidentState | None, pause: Pause | None) -> str:
    """Why this answer cannot be followed; "" where it can."""
    if incident is None:
        return "no incident is open any more"
    if incident.incident != answer.incident:
        return f"incident {incident.incident} is open now, not {answer.incident}"
    if pause is not None:
        return f"actions are paused by {pause.by}: `rankpatrol unpause` first"
    if incident.waits_for is not WaitsFor.ANSWER:
        return f"incident {incident.incident} is {incident.stage} and asks nothing"
    return ""
