"""Carries out what the incident machine instructs, and feeds the results back to it. It decides nothing itself."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rankpatrol.act.brake import Failure, braked, pause_s, recalled
from rankpatrol.act.plan import Outlook
from rankpatrol.act.suspects import suspect_files
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import PatrolError
from rankpatrol.incident.machine import step
from rankpatrol.incident.records import (
    ActionEnded,
    ActionHeld,
    AnsweredYes,
    AskPerson,
    AttemptEnded,
    BundleSealed,
    CarryOut,
    Close,
    GiveVerdict,
    IncidentEvent,
    IncidentPolicy,
    IncidentState,
    Instruction,
    LookAgain,
    LookedAgain,
    ProgressReturned,
    RaiseAlert,
    SayChanged,
    SealEvidence,
    SealFailed,
    Stage,
    SuspectNamed,
    TimeoutNears,
    Unpaused,
    VerdictGiven,
    WaitsFor,
)
from rankpatrol.journal import read_events, read_incident_events
from rankpatrol.launch.pauses import Pause
from rankpatrol.system.clock import Clock


class Hands(Protocol):
    """What the desk needs done in the world; the agent lends them."""

    def put_aside(self) -> None:
        """Keep what is seen now, for a bundle that may have to be sealed when the ranks are gone."""
        ...

    def seal(self, state: IncidentState, *, fresh: bool, spare: bool) -> Path:
        """Seal the incident's bundle (`spare`: not on the local disk, which refused) and return its path. Raises PatrolError."""
        ...

    def recover(self, state: IncidentState, bundle: str, outlook: Outlook) -> bool:
        """Plan and execute the recovery; True where the job was queued again. Raises PatrolError where it was not done."""
        ...

    def is_last(self, attempt: int) -> bool:
        """True where the launcher starts no attempt after this one, but the job's scheduler may start the whole job again."""
        ...

    def look_again(self) -> Diagnosis:
        """What the ranks show now."""
        ...

    def paused(self) -> Pause | None:
        """The pause that stands at this moment."""
        ...

    def answer_command(self, incident: int) -> str:
        """What a person types to say yes."""
        ...

    def remember(self, state: IncidentState) -> None:
        """Keep for other jobs whose node this verdict names. Never waits, never raises."""
        ...

    def announce(self, what: str, style: str) -> None:
        """Tell the user."""
        ...


class Ledger(Protocol):
    """Where the desk writes; `journal.Journal` is one."""

    def tell(self, kind: str, attempt: int, **fields: Any) -> None:
        """Write one event of CONTRACT's kinds."""
        ...

    def record(self, event: IncidentEvent) -> None:
        """Keep an incident's event for a successor."""
        ...


class IncidentDesk:
    """The incident of the current attempt, if there is one."""

    def __init__(self, policy: IncidentPolicy, journal: Ledger, hands: Hands, clock: Clock) -> None:
        self._policy, self._journal, self._hands, self._clock = policy, journal, hands, clock
        self.state: IncidentState | None = None
        self._count = 0
        self._told: set[tuple[str, int, object]] = set()
        self._failures: list[Failure] = []

    def adopt(self, spool: Path) -> None:
        """Take up what an earlier agent left: its incident, and the instruction it had not finished; what it told stays told."""
        self._told = {_key(event["kind"], event["incident"], event) for event in read_events(spool) if "incident" in event}
        self._count = max((key[1] for key in self._told), default=0)
        self._failures.clear()
        pending: tuple[Instruction, ...] = ()
        for event in read_incident_events(spool):
            self.state, pending = step(self.state, event, self._policy)
            if isinstance(event, SuspectNamed):
                self._count = max(self._count, event.incident)
            elif isinstance(event, VerdictGiven) and self.state is not None:
                self._failures.append(_failure(self.state, event))
        if self.open_incident() is not None:
            self._carry_out(deque(pending))

    def open_incident(self) -> IncidentState | None:
        """The incident that is not closed yet."""
        return None if self.state is None or self.state.stage is Stage.CLOSED else self.state

    def next_number(self) -> int:
        """A number for an incident that is not this desk's: no two of a job have the same."""
        self._count += 1
        return self._count

    def suspect(self, attempt: int, onset_unix_s: float, diagnosis: Diagnosis, *, quiet: bool = False) -> None:
        """The judge names somebody; while an incident is open that is no new one."""
        if self.open_incident() is None:
            self._handle(
                SuspectNamed(incident=self.next_number(), attempt=attempt, onset_unix_s=onset_unix_s, diagnosis=diagnosis, quiet=quiet)
            )

    def judged(self, onset_unix_s: float, diagnosis: Diagnosis, step: int | None = None, phase: str | None = None) -> None:
        """The judge's patience is over, the attempt having come to `step` in `phase`. What the brake refuses becomes a stop."""
        state = self.open_incident()
        if state is None or state.stage is not Stage.ALERTED:
            return  # an agent that was started again judges anew what waits already
        event, history = VerdictGiven(onset_unix_s=onset_unix_s, diagnosis=diagnosis, step=step, phase=phase), tuple(self._failures)
        now = _failure(state, event)
        self._failures.append(now)
        said = braked(now, history, self._policy.budget) or recalled(now, history)
        found = None if said is diagnosis else diagnosis
        self._handle(msgspec.structs.replace(event, diagnosis=said, found=found, last=self._hands.is_last(state.attempt)))

    def outlook(self) -> Outlook:
        """What the failures so far mean for the next attempt."""
        history, now_unix_s = tuple(self._failures), self._clock.unix_s()
        wait_s = pause_s(now_unix_s, history, self._policy.budget) if self._policy.act else 0.0
        suspects = suspect_files(failure.diagnosis for failure in history)
        failed_of = history[-1].diagnosis.cause if history else None
        return Outlook(suspect_files=suspects, not_before_unix_s=now_unix_s + wait_s if wait_s else None, failed_of=failed_of)

    def unpaused(self) -> None:
        """Nobody has paused actions: an incident that waits for this is looked at again."""
        if self.state is not None and self.state.waits_for is WaitsFor.UNPAUSE:
            self._handle(Unpaused())

    def answered_yes(self, by: str) -> None:
        """A person has said yes to the open question."""
        self._handle(AnsweredYes(by=by))

    def timeout_nears(self, fires_in_s: float, timeout_s: float) -> None:
        """A process group's own time-out is about to end the attempt."""
        if (state := self.open_incident()) is not None and state.stage is Stage.ALERTED and state.bundle is None:
            fires = f"the process group's own time-out ({say_duration(timeout_s)}) fires in {say_duration(max(0.0, fires_in_s))}"
            self._hands.announce(f"{fires}: the evidence is sealed before", "alert")
            self._handle(TimeoutNears(fires_in_s=fires_in_s))

    def progress_returned(self) -> None:
        """Every rank stirs again."""
        self._handle(ProgressReturned())

    def attempt_ended(self, *, ordered: bool) -> None:
        """The attempt is over."""
        self._handle(AttemptEnded(ordered=ordered))

    def _handle(self, event: IncidentEvent) -> None:
        if not isinstance(event, SuspectNamed) and self.open_incident() is None:
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
                self._hands.put_aside()
                if not instruction.quiet:
                    self._raise_alert(state)
            case SealEvidence():
                return self._seal(state, fresh=instruction.fresh)
            case CarryOut():
                return self._act(state, instruction.bundle)
            case LookAgain():
                return LookedAgain(diagnosis=self._hands.look_again())
            case _:
                self._say(instruction, state)
        return None

    def _say(self, instruction: GiveVerdict | AskPerson | SayChanged | Close, state: IncidentState) -> None:
        match instruction:
            case GiveVerdict():
                self._give_verdict(state)
            case AskPerson():
                self._ask(state)
            case SayChanged():
                self._say_changed(state, instruction.now)
            case Close():
                if self._known(state) and self._tell("incident_closed", state, how=instruction.how):
                    self._hands.announce(f"incident {state.incident} closed: {instruction.how}", "good")

    def _known(self, state: IncidentState) -> bool:
        """True where people have heard of this incident."""
        return any((kind, state.incident, 0) in self._told for kind in ("alert", "verdict"))

    def _tell(self, kind: str, state: IncidentState, **fields: object) -> bool:
        """Write one event of this incident, unless it stands there already."""
        again = {"again": state.again} if state.again else {}
        key = _key(kind, state.incident, {**fields, **again})
        if key in self._told:
            return False
        self._told.add(key)
        self._journal.tell(kind, state.attempt, incident=state.incident, **again, **fields)
        return True

    def _raise_alert(self, state: IncidentState) -> None:
        diagnosis = state.diagnosis
        named = {"suspect_ranks": diagnosis.culprit_ranks or (), "awaited_ranks": diagnosis.awaited_ranks}
        why = diagnosis.reasons_for[-1] if diagnosis.reasons_for else diagnosis.sentence
        if self._tell("alert", state, why=why, **named, **_said(state)):
            since = say_duration(max(0.0, self._clock.unix_s() - state.onset_unix_s))
            self._hands.announce(f"{diagnosis.sentence} ({diagnosis.certainty}; for {since})", "alert")

    def _give_verdict(self, state: IncidentState) -> None:
        diagnosis = state.diagnosis
        named = {"culprit_ranks": diagnosis.culprit_ranks, "awaited_ranks": diagnosis.awaited_ranks}
        if self._tell("verdict", state, verdict=diagnosis.verdict, **named, **_said(state)):
            self._hands.announce(f"{diagnosis.verdict} / {diagnosis.cause} ({diagnosis.certainty}): {diagnosis.sentence}", "verdict")
        self._hands.remember(state)

    def _seal(self, state: IncidentState, *, fresh: bool) -> IncidentEvent:
        began_s = self._clock.mono_s()
        try:
            path = self._hands.seal(state, fresh=fresh, spare=state.seals_failed > 0)
        except PatrolError as problem:
            self._journal.tell("seal_failed", state.attempt, incident=state.incident, why=str(problem))
            self._hands.announce(f"the evidence could not be sealed: {problem}. {problem.help}", "alert")
            return SealFailed(why=str(problem))
        seconds = round(self._clock.mono_s() - began_s, 2)
        if self._tell("bundle_sealed", state, path=str(path), seconds=seconds):
            self._hands.announce(f"evidence sealed in {seconds} s: {path}", "plain")
        return BundleSealed(path=str(path))

    def _ask(self, state: IncidentState) -> None:
        """The question is an event and a line; the terminal's keyboard belongs to the training."""
        command = self._hands.answer_command(state.incident)
        if self._tell("question", state, what=state.would_do(), command=command):
            self._hands.announce(f"{state.would_do()}? Nothing is done until somebody says so: {command}", "verdict")

    def _say_changed(self, state: IncidentState, now: Diagnosis) -> None:
        why = f"it is not so any more: {now.sentence}"
        if self._tell("action_refused", state, why=why):
            self._hands.announce(f"nothing was done about incident {state.incident}: {why}", "alert")

    def _act(self, state: IncidentState, bundle: str) -> IncidentEvent:
        # Looked at here and not before: a restarted agent comes here too, and somebody may have paused it meanwhile.
        pause = self._hands.paused()
        if pause is not None:
            if self._tell("action_held", state, why="paused", by=pause.by, since_unix_s=round(pause.since_unix_s, 3)):
                self._hands.announce(f"incident {state.incident} is not acted upon: actions are paused by {pause.by}", "alert")
            return ActionHeld(by=pause.by, since_unix_s=pause.since_unix_s)
        try:
            requeued = self._hands.recover(state, bundle, self.outlook())
        except PatrolError as problem:
            self._hands.announce(f"nothing more was done: {problem}. {problem.help}", "alert")
            return ActionEnded(done=False, why=str(problem))
        return ActionEnded(done=True, requeued=requeued)


def _failure(state: IncidentState, event: VerdictGiven) -> Failure:
    """As it was found, whatever the brake made of it."""
    return Failure(
        attempt=state.attempt,
        incident=state.incident,
        at_unix_s=event.onset_unix_s,
        diagnosis=event.found or event.diagnosis,
        step=event.step,
        phase=event.phase,
    )


def _key(kind: str, incident: int, fields: Mapping[str, object]) -> tuple[str, int, object]:
    """What makes an event of an incident the same one; a time-out that neared left a bundle of its own, as evidence taken again does."""
    return (f"{kind} {fields['path']}" if kind == "bundle_sealed" else kind, incident, fields.get("again", 0))


def _said(state: IncidentState) -> dict[str, object]:
    """What an alert and a verdict have in common."""
    diagnosis = state.diagnosis
    return {
        "cause": diagnosis.cause,
        "certainty": diagnosis.certainty,
        "sentence": diagnosis.sentence,
        "onset_unix_s": round(state.onset_unix_s, 3),
    }
