"""Drives a recording through the judge and the incident desk, under its own settings or others."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rankpatrol.act.plan import Outlook
from rankpatrol.agent.desk import IncidentDesk
from rankpatrol.agent.eyes import all_joined
from rankpatrol.agent.phases import phase_of_job
from rankpatrol.analysis.aftermath import aftermath
from rankpatrol.core.counts import say_count
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Record
from rankpatrol.incident.records import FINAL_VERDICTS, IncidentEvent, IncidentPolicy, IncidentState, Stage
from rankpatrol.judge.judge import step
from rankpatrol.judge.records import (
    AttemptBegan,
    Event,
    Finding,
    Judged,
    JudgeState,
    LookCloser,
    Looked,
    Observed,
    Policy,
    Resumed,
    Suspected,
    TimeoutNears,
)
from rankpatrol.judge.tape import AttemptOver, CrashFound, Said, TapeBegan, TapeItem, TapeStopped, WallMoved, said
from rankpatrol.launch.pauses import Pause

# What an incident's events are worth telling on a time line; `bundle_sealed` is left out, since nothing is sealed here.
_TOLD = frozenset({"alert", "verdict", "incident_closed"})


class Entry(Record, frozen=True, kw_only=True):
    """One thing that would have been said or done, `at_s` seconds after the recording's begin."""

    at_s: float
    attempt: int
    kind: str
    incident: int | None = None
    what: str = ""
    sentence: str = ""
    culprit_ranks: tuple[int, ...] | None = None
    onset_s: float | None = None


class Ending(Record, frozen=True, kw_only=True):
    """An attempt that would have been ended. `went_on_s`: in the recording it went on by itself this much later; None where it did not.

    `goes_on_unseen`: the recording ends with its own patrol ending the attempt, so nobody knows.
    """

    attempt: int
    at_s: float
    went_on_s: float | None = None
    goes_on_unseen: bool = False


class Replayed(Record, frozen=True, kw_only=True):
    """What one set of settings makes of a recording. `findings` are the judge's own, each with its time on the tape's clock.

    `looks_missed`: the judge asked for looks that were not taken at that time, and got the next one that was.
    """

    job: str
    world_size: int
    seconds: float
    policy: Policy
    acts: bool
    recorded_policy: Policy
    recorded_acts: bool
    findings: tuple[tuple[float, Finding], ...]
    entries: tuple[Entry, ...]
    endings: tuple[Ending, ...]
    looks_missed: int
    as_said: bool
    remarks: tuple[str, ...]


def replay(items: Iterable[TapeItem], policy: Policy | None = None, *, acts: bool | None = None) -> Replayed:
    """The recording under these settings; its own where none are given."""
    stage = _Play(policy, acts)
    for item in items:
        stage.take(item)
    return stage.result()


class _VirtualClock:
    """The tape's time."""

    def __init__(self) -> None:
        self.at_s, self.wall_s = 0.0, 0.0

    def mono_s(self) -> float:
        return self.at_s

    def unix_s(self) -> float:
        return self.at_s + self.wall_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class _Play:
    """One replay while it goes on: the agent's part, without a machine. It is its own desk's `Ledger` and `Hands`."""

    def __init__(self, policy: Policy | None, acts: bool | None) -> None:
        self._given, self._given_acts = policy, acts
        self._clock = _VirtualClock()
        self._began: TapeBegan | None = None
        self._policy, self._acts = policy or Policy(), bool(acts)
        self._state = JudgeState()
        self._desk = IncidentDesk(IncidentPolicy(act=False), self, self, self._clock)
        self._attempt = self._world_size = 0
        self._phase: str | None = None
        self._asked = self._fresh = False
        self._last: tuple[Event, tuple[Finding, ...]] | None = None
        self._ended: Ending | None = None
        self._step_then: int | None = None
        self.findings: list[tuple[float, Finding]] = []
        self.entries: list[Entry] = []
        self.endings: list[Ending] = []
        self.remarks: list[str] = []
        self._looks_missed, self._as_said = 0, True

    def take(self, item: TapeItem) -> None:
        """One item of the recording."""
        if isinstance(item, Said):
            self._check_said(item)
            return
        self._check_said(None)
        self._count_missed(item)
        self._clock.at_s = item.at_s
        match item:
            case TapeBegan():
                self._begin(item)
            case AttemptBegan():
                self._attempt, self._world_size, self._asked = item.attempt, max(self._world_size, item.world_size), False
                self._phase = None
                self._tell(Entry(at_s=self._now_s(), attempt=item.attempt, kind="attempt", what=say_count(item.world_size, "rank")))
                self._judge(item)
            case Observed():
                marked = (each.phase for each in item.ranks if not each.ended)
                self._phase = phase_of_job(self._phase, marked, joined=all_joined(item.ranks))
                self._judge(item)
            case Looked():
                self._look(item)
            case CrashFound():
                self._crash(item)
            case AttemptOver():
                self._over(item)
            case WallMoved():
                self._wall_moved(item)
            case TapeStopped():
                self.remarks.append(f"at +{self._now_s():.1f} s: {item.why}")

    def _count_missed(self, item: TapeItem) -> None:
        """The agent that recorded looked at once where it was asked."""
        if not isinstance(item, WallMoved):
            self._looks_missed += self._fresh and not isinstance(item, Looked)
            self._fresh = False

    def result(self) -> Replayed:
        """What came of it."""
        self._check_said(None)
        began = self._began
        if began is None:
            raise ValueError("a tape begins with its beginning")
        if self._ended is not None:
            self.endings.append(self._ended)
        return Replayed(
            job=began.job,
            world_size=self._world_size,
            seconds=round(self._now_s(), 3),
            policy=self._policy,
            acts=self._acts,
            recorded_policy=began.policy,
            recorded_acts=began.acts,
            findings=tuple(self.findings),
            entries=tuple(self.entries),
            endings=tuple(self.endings),
            looks_missed=self._looks_missed,
            as_said=self._as_said,
            remarks=tuple(self.remarks),
        )

    def _begin(self, item: TapeBegan) -> None:
        """A new agent remembers nothing but what is written down; its desk goes on."""
        self._clock.wall_s = item.unix_s - item.at_s
        if self._began is None:
            self._began = item
            self._policy = self._given or item.policy
            self._acts = item.acts if self._given_acts is None else self._given_acts
            self._desk = IncidentDesk(IncidentPolicy(act=self._acts), self, self, self._clock)
        else:
            self.remarks.append(f"at +{self._now_s():.1f} s a new agent took over")
        self._state, self._asked, self._last = item.state, False, None

    def _judge(self, event: Event) -> None:
        self._state, findings = step(self._state, event, self._policy)
        self._last = (event, findings)
        for finding in findings:
            self.findings.append((event.at_s, finding))
            self._follow(finding)
        if self._state.looked_at_s is None:
            self._asked = False
        self._watch_ended(findings)

    def _look(self, item: Looked) -> None:
        """Only what was asked for is told: under other settings nobody would have looked."""
        if self._asked:
            self._asked = False
            self._judge(item)
        else:
            self._last = None

    def _follow(self, finding: Finding) -> None:
        match finding:
            case LookCloser():
                self._asked = self._fresh = True
            case Suspected() if self._ended is None:
                self._desk.suspect(self._attempt, self._unix_s(finding.onset_s), finding.diagnosis, quiet=finding.quiet)
            case TimeoutNears() if self._ended is None:
                self._desk.timeout_nears(finding.fires_in_s, finding.timeout_s)
            case Judged() if self._ended is None:
                self._desk.judged(self._unix_s(finding.onset_s), finding.diagnosis, self._state.step, self._phase)
            case Resumed():
                self._desk.progress_returned()

    def _watch_ended(self, findings: tuple[Finding, ...]) -> None:
        """Did the recorded attempt go on by itself, after these settings would have ended it?"""
        ended = self._ended
        if ended is None or ended.went_on_s is not None:
            return
        stepped = self._state.step is not None and self._state.step > (-1 if self._step_then is None else self._step_then)
        if stepped or any(isinstance(finding, Resumed) for finding in findings):
            self._ended = msgspec.structs.replace(ended, went_on_s=round(self._now_s() - ended.at_s, 3))

    def _crash(self, item: CrashFound) -> None:
        alerted = self._desk.open_incident()
        if self._ended is not None or (alerted is not None and alerted.stage is not Stage.ALERTED):
            return
        if alerted is not None:
            self._desk.judged(alerted.onset_unix_s, aftermath(alerted.diagnosis, item.diagnosis), self._state.step, self._phase)
            return
        self._desk.suspect(self._attempt, self._unix_s(item.onset_s), item.diagnosis)
        self._desk.judged(self._unix_s(item.onset_s), item.diagnosis, self._state.step, self._phase)

    def _over(self, item: AttemptOver) -> None:
        if self._ended is not None:
            self.endings.append(msgspec.structs.replace(self._ended, goes_on_unseen=item.by_us and self._ended.went_on_s is None))
            self._ended = None
        how = "ended by the patrol that recorded" if item.by_us else "told to end" if item.ordered else "ended"
        self._desk.attempt_ended(ordered=item.ordered)
        self._tell(Entry(at_s=self._now_s(), attempt=item.attempt, kind="attempt_over", what=how))

    def _wall_moved(self, item: WallMoved) -> None:
        moved_s = item.unix_s - item.at_s - self._clock.wall_s
        self._clock.wall_s += moved_s
        self.remarks.append(f"at +{self._now_s():.1f} s the wall clock was moved by {moved_s:+.0f} s: nothing is measured by it")

    def _check_said(self, item: Said | None) -> None:
        """Under its own settings the judge says what it said then, unless it has been changed since."""
        last, self._last = self._last, None
        if last is None or self._began is None or self._policy != self._began.policy:
            return
        if said(last[1]).findings != (item.findings if item is not None else ()):
            self._as_said = False

    def tell(self, kind: str, attempt: int, **fields: Any) -> None:
        """One event of an incident."""
        if kind not in _TOLD:
            return
        onset_unix_s = fields.get("onset_unix_s")
        what = fields.get("how") or " / ".join(str(fields[name]) for name in ("verdict", "cause") if name in fields)
        certainty = f" ({fields['certainty']})" if "certainty" in fields else ""
        self._tell(
            Entry(
                at_s=self._now_s(),
                attempt=attempt,
                kind=kind,
                incident=fields.get("incident"),
                what=f"{what}{certainty}",
                sentence=fields.get("sentence", ""),
                culprit_ranks=fields.get("culprit_ranks") or fields.get("suspect_ranks") or None,
                onset_s=None if onset_unix_s is None else round(onset_unix_s - self._clock.wall_s - self._start_s(), 3),
            )
        )

    def record(self, event: IncidentEvent) -> None:
        """There is no successor."""

    def look_again(self) -> Diagnosis:
        """Nothing is paused in a replay, so nothing is looked at again."""
        return Diagnosis(verdict="undetermined", cause="unknown", sentence="a recording shows no more than was recorded")

    def paused(self) -> Pause | None:
        """Nobody pauses a recording."""
        return None

    def answer_command(self, incident: int) -> str:
        """Nobody is asked."""
        return f"(a replay asks nobody about incident {incident})"

    def put_aside(self) -> None:
        """There is nothing to keep."""

    def seal(self, state: IncidentState, *, fresh: bool, spare: bool) -> Path:  # ruff: ignore[ARG002] - the port's words
        """In virtual time a seal takes none."""
        return Path("replayed") / str(state.incident)

    def recover(self, state: IncidentState, bundle: str, outlook: Outlook) -> bool:  # ruff: ignore[ARG002] - the port's words
        """What would have been done; the tape goes on as it was."""
        what = "the job would be ended" if state.diagnosis.verdict in FINAL_VERDICTS else "the attempt would be ended and started again"
        self._tell(Entry(at_s=self._now_s(), attempt=state.attempt, kind="action", incident=state.incident, what=what))
        self._ended = Ending(attempt=state.attempt, at_s=self._now_s())
        self._step_then = self._state.step
        return False

    def is_last(self, attempt: int) -> bool:  # ruff: ignore[ARG002] - the port's words
        """A tape does not tell of launchers."""
        return False

    def remember(self, state: IncidentState) -> None:
        """A replay is no news of a node."""

    def announce(self, what: str, style: str) -> None:
        """There is nobody to tell."""

    def _tell(self, entry: Entry) -> None:
        self.entries.append(entry)

    def _start_s(self) -> float:
        return self._began.at_s if self._began is not None else 0.0

    def _now_s(self) -> float:
        return round(self._clock.at_s - self._start_s(), 3)

    def _unix_s(self, at_s: float) -> float:
        return self._clock.unix_s() - (self._clock.mono_s() - at_s)


def harmful(endings: Iterable[Ending]) -> tuple[Ending, ...]:
    """Attempts that would have been ended, and went on by themselves."""
    return tuple(ending for ending in endings if ending.went_on_s is not None)
