"""Remembers which nodes a job's culprits were on, on a thread of its own: the user's home may be full, locked, or hang."""

from collections.abc import Callable
from pathlib import Path

from rankpatrol.agent.roster import Attempt
from rankpatrol.incident.records import IncidentState
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.lemons.memory import LemonMemory, LemonProblem
from rankpatrol.lemons.records import Memory, NodeIncident, NodeUse
from rankpatrol.system.background import Courier


class LemonWatch:
    """One job's contribution to the memory. It never waits and never raises; what goes wrong is said once."""

    def __init__(self, spec: JobSpec, path: Path | None, say: Callable[[str], None]) -> None:
        # A job directory may be named the same on another day.
        self._job = f"{spec.job_dir}@{spec.started_unix_s:.0f}"
        self._started_unix_s = spec.started_unix_s
        self._memory = None if path is None else LemonMemory(path)
        self._courier = None if path is None else Courier("lemons", most=1000)
        self._say, self._said = say, False

    def began(self, attempt: Attempt) -> None:
        """These nodes carry the job: the innocent have to be known as well, to compare."""
        nodes = dict.fromkeys(place.node for place in attempt.places)
        self._send(Memory(uses=tuple(NodeUse(job=self._job, node=node, at_unix_s=self._started_unix_s) for node in nodes)))

    def judged(self, state: IncidentState, attempt: Attempt | None) -> None:
        """Whose nodes the culprits were on; nobody's where nobody is named."""
        culprits = state.diagnosis.culprit_ranks or ()
        places = [place for place in attempt.places if place.rank in culprits] if attempt else []
        self._send(Memory(incidents=tuple(self._incident(state, place.node, f"local rank {place.local_rank}") for place in places)))

    def settled(self, deadline_s: float) -> bool:
        """True once all that was said is kept, or nothing is; False when the deadline passes first."""
        return self._courier is None or self._courier.delivered(deadline_s)

    def _incident(self, state: IncidentState, node: str, device: str) -> NodeIncident:
        return NodeIncident(
            job=self._job,
            incident=state.incident,
            at_unix_s=state.onset_unix_s,
            node=node,
            device=device,
            verdict=state.diagnosis.verdict,
            cause=state.diagnosis.cause,
            sentence=state.diagnosis.sentence,
        )

    def _send(self, memory: Memory) -> None:
        if self._courier is not None and (memory.incidents or memory.uses):
            self._courier.send(lambda: self._add(memory))

    def _add(self, memory: Memory) -> None:
        try:
            if self._memory is not None:
                self._memory.add(memory)
        except LemonProblem as problem:
            if not self._said:
                self._said = True
                self._say(f"{problem}; the job goes on without it")
