"""Carries out what the incident machine instructs, and feeds the results back to it. It decides nothing itself."""

from collections import deque
from pathlib import Path
from typing import Protocol

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import PatrolError
from rankpatrol.incident.machine import step
from rankpatrol.incident.records import (
    ActionEnded,
    AttemptEnded,
    BundleSealed,
    CarryOut,
    Close,
    GiveVerdict,
    IncidentEvent,
    IncidentPolicy,
    IncidentState,
    Instruction,
    ProgressReturned,
    RaiseAlert,
    SealEvidence,
    SealFailed,
    Stage,
    SuspectNamed,
    VerdictGiven,
)
from rankpatrol.journal import Journal, read_incident_events
from rankpatrol.system.clock import Clock


class Hands(Protocol):
    """What the desk needs done in the world; the agent lends them."""

    def put_aside(self) -> None:
        """Keep what is seen now, for a bundle that may have to be sealed when the ranks are gone."""
        ...

    def seal(self, state: IncidentState, *, fresh: bool, spare: bool) -> Path:
        """Seal the incident's bundle (`spare`: not in the job directory) and return its path. Raises PatrolError."""
        ...

    def recover(self, state: IncidentState, bundle: str) -> None:
        """Plan and execute the recovery. Raises PatrolError where it was not done."""
        ...

    def announce(self, what: str, style: str) -> None:
        """Tell the user."""
        ...


class IncidentDesk:
    """The incident of the current attempt, if there is one."""

    def __init__(self, policy: IncidentPolicy, journal: Journal, hands: Hands, clock: Clock) -> None:
        self._policy, self._journal, self._hands, self._clock = policy, journal, hands, clock
        self.state: IncidentState | None = None
        self._count = 0

    def adopt(self, job_dir: Path) -> None:
        """Take up what an earlier agent left: its incident, and the instruction it had not finished."""
        pending: tuple[Instruction, ...] = ()
        for event in read_incident_events(job_dir):
            self.state, pending = step(self.state, event, self._policy)
            self._count = max(self._count, event.incident if isinstance(event, SuspectNamed) else 0)
        if self.state is not None and self.state.stage is not Stage.CLOSED:
            self._carry_out(deque(pending))

    def suspect(self, attempt: int, onset_unix_s: float, diagnosis: Diagnosis) -> None:
        """The judge names somebody; while an incident is open that is no new one."""
        if self.state is None or self.state.stage is Stage.CLOSED:
            self._count += 1
            self._handle(SuspectNamed(incident=self._count, attempt=attempt, onset_unix_s=onset_unix_s, diagnosis=diagnosis))

    def judged(self, onset_unix_s: float, diagnosis: Diagnosis) -> None:
        """The judge's patience is over."""
        self._handle(VerdictGiven(onset_unix_s=onset_unix_s, diagnosis=diagnosis))

    def progress_returned(self) -> None:
        """Every rank stirs again."""
        self._handle(ProgressReturned())

    def attempt_ended(self, *, ordered: bool) -> None:
        """The attempt is over."""
        self._handle(AttemptEnded(ordered=ordered))

    def _handle(self, event: IncidentEvent) -> None:
        if not isinstance(event, SuspectNamed) and (self.state is None or self.state.stage is Stage.CLOSED):
            return
        self._journal.record(event)
        self.state, instructions = step(self.state, event, self._policy)
        self._carry_out(deque(instructions))

    def _carry_out(self, instructions: deque[Instruction]) -> None:
        while instructions and self.state is not None:
            event = self._do(instructions.popleft(), self.state)
            if event is not None:
                self._journal.record(event)
                self.state, more = step(self.state, event, self._policy)
                instructions.extend(more)

    def _do(self, instruction: Instruction, state: IncidentState) -> IncidentEvent | None:
        match instruction:
            case RaiseAlert():
                self._raise_alert(state)
            case GiveVerdict():
                self._give_verdict(state)
            case SealEvidence():
                return self._seal(state, fresh=instruction.fresh)
            case CarryOut():
                return self._act(state, instruction.bundle)
            case Close():
                self._journal.tell("incident_closed", state.attempt, incident=state.incident, how=instruction.how)
                self._hands.announce(f"incident {state.incident} closed: {instruction.how}", "good")
        return None

    def _raise_alert(self, state: IncidentState) -> None:
        diagnosis = state.diagnosis
        self._hands.put_aside()
        named = diagnosis.culprit_ranks or diagnosis.awaited_ranks or ()
        self._journal.tell(
            "alert",
            state.attempt,
            incident=state.incident,
            why=diagnosis.reasons_for[-1] if diagnosis.reasons_for else diagnosis.sentence,
            cause=diagnosis.cause,
            suspect_ranks=named,
            certainty=diagnosis.certainty,
            sentence=diagnosis.sentence,
            onset_unix_s=round(state.onset_unix_s, 3),
        )
        since = say_duration(max(0.0, self._clock.unix_s() - state.onset_unix_s))
        self._hands.announce(f"{diagnosis.sentence} ({diagnosis.certainty}; for {since})", "alert")

    def _give_verdict(self, state: IncidentState) -> None:
        diagnosis = state.diagnosis
        self._journal.tell(
            "verdict",
            state.attempt,
            incident=state.incident,
            verdict=diagnosis.verdict,
            cause=diagnosis.cause,
            culprit_ranks=diagnosis.culprit_ranks,
            awaited_ranks=diagnosis.awaited_ranks,
            certainty=diagnosis.certainty,
            sentence=diagnosis.sentence,
            onset_unix_s=round(state.onset_unix_s, 3),
        )
        self._hands.announce(f"{diagnosis.verdict} / {diagnosis.cause} ({diagnosis.certainty}): {diagnosis.sentence}", "verdict")

    def _seal(self, state: IncidentState, *, fresh: bool) -> IncidentEvent:
        began_s = self._clock.mono_s()
        try:
            path = self._hands.seal(state, fresh=fresh, spare=state.seals_failed > 0)
        except PatrolError as problem:
            self._hands.announce(f"the evidence could not be sealed: {problem}. {problem.help}", "alert")
            return SealFailed(why=str(problem))
        seconds = round(self._clock.mono_s() - began_s, 2)
        self._journal.tell("bundle_sealed", state.attempt, incident=state.incident, path=str(path), seconds=seconds)
        self._hands.announce(f"evidence sealed in {seconds} s: {path}", "plain")
        return BundleSealed(path=str(path))

    def _act(self, state: IncidentState, bundle: str) -> IncidentEvent:
        try:
            self._hands.recover(state, bundle)
        except PatrolError as problem:
            self._hands.announce(f"nothing more was done: {problem}. {problem.help}", "alert")
            return ActionEnded(done=False, why=str(problem))
        return ActionEnded(done=True)
