"""Incidents that no action ever follows: a slow job, a loss that is no number. They stand beside the desk's and never hold it up."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rankpatrol.agent.desk import Hands, Ledger
from rankpatrol.analysis.losses import lost_loss
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.snapshot import LogSample
from rankpatrol.evidence.findings import speakable
from rankpatrol.incident.records import IncidentState, Stage
from rankpatrol.journal import read_events
from rankpatrol.system.clock import Clock

_OURS = frozenset({"straggler", "straggler_unattributable", "host_contention", "link_degraded", "loss_nan"})


class _Number(Protocol):
    def __call__(self) -> int: ...


class Asides:
    """Tells, seals, and closes them. `number` gives each incident its own."""

    def __init__(self, ledger: Ledger, hands: Hands, number: _Number, clock: Clock) -> None:
        self._ledger, self._hands, self._number, self._clock = ledger, hands, number, clock
        self._going_on: dict[str, IncidentState] = {}
        self._told: set[tuple[int, str]] = set()

    def adopt(self, spool: Path) -> None:
        """What an earlier agent told is not told again; what it left open is closed, since its yardstick is gone."""
        events = [event for event in read_events(spool) if "incident" in event]
        closed = {event["incident"] for event in events if event["kind"] == "incident_closed"}
        for event in events:
            if event["kind"] in {"alert", "verdict"} and event.get("cause") in _OURS:
                self._told.add((event["attempt"], _kind(event["cause"])))
                if event["incident"] not in closed:
                    self._ledger.tell("incident_closed", event["attempt"], incident=event["incident"], how="dismissed")
                    closed.add(event["incident"])

    def open(self) -> tuple[IncidentState, ...]:
        """What is told and not over."""
        return tuple(self._going_on.values())

    def tell(self, attempt: int, onset_unix_s: float, diagnosis: Diagnosis) -> None:
        """Say it once an attempt, and seal the evidence. A healthy job gets an alert, a slow one a verdict."""
        kind, diagnosis = _kind(diagnosis.cause), speakable(diagnosis)
        if (attempt, kind) in self._told:
            return
        self._told.add((attempt, kind))
        state = IncidentState(incident=self._number(), attempt=attempt, stage=Stage.ALERTED, onset_unix_s=onset_unix_s, diagnosis=diagnosis)
        self._going_on[kind] = state
        fields: dict[str, object] = {
            "incident": state.incident,
            "cause": diagnosis.cause,
            "certainty": diagnosis.certainty,
            "sentence": diagnosis.sentence,
            "onset_unix_s": round(onset_unix_s, 3),
            "awaited_ranks": diagnosis.awaited_ranks,
        }
        if diagnosis.verdict == "healthy":
            why = diagnosis.reasons_for[-1] if diagnosis.reasons_for else diagnosis.sentence
            self._ledger.tell("alert", attempt, why=why, suspect_ranks=diagnosis.culprit_ranks or (), **fields)
        else:
            self._ledger.tell("verdict", attempt, verdict=diagnosis.verdict, culprit_ranks=diagnosis.culprit_ranks, **fields)
            self._hands.remember(state)
        self._hands.announce(f"{diagnosis.verdict} / {diagnosis.cause} ({diagnosis.certainty}): {diagnosis.sentence}", "alert")
        self._seal(state)

    def follow_losses(self, attempt: int, logs: Mapping[int, LogSample]) -> None:
        """A loss that is no number is told once an attempt, and closed when numbers come again."""
        found = lost_loss(logs)
        if found is not None:
            self.tell(attempt, self._clock.unix_s(), found)
        elif logs:
            self.close("recovered", "loss_nan")

    def close(self, how: str, cause: str | None = None) -> None:
        """It is over; all are where no cause is named."""
        for kind in [_kind(cause)] if cause else list(self._going_on):
            if (state := self._going_on.pop(kind, None)) is not None:
                self._ledger.tell("incident_closed", state.attempt, incident=state.incident, how=how)
                self._hands.announce(f"incident {state.incident} closed: {how}", "good")

    def _seal(self, state: IncidentState) -> None:
        began_s = self._clock.mono_s()
        try:
            path = self._hands.seal(state, fresh=True, spare=False)
        except PatrolError as problem:
            self._ledger.tell("seal_failed", state.attempt, incident=state.incident, why=str(problem))
            self._hands.announce(f"the evidence could not be sealed: {problem}. {problem.help}", "alert")
            return
        seconds = round(self._clock.mono_s() - began_s, 2)
        self._ledger.tell("bundle_sealed", state.attempt, incident=state.incident, path=str(path), seconds=seconds)


def _kind(cause: str) -> str:
    """One slow spell is told an attempt, whatever is behind it."""
    return cause if cause == "loss_nan" else "slow"
