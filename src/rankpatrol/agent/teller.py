"""What is told of a job, in CONTRACT's events and to the user: how attempts begin and end, how far they are, what is done."""

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankpatrol.act.execute import StepReport
from rankpatrol.agent.bindings import as_event
from rankpatrol.agent.phases import phase_of_job
from rankpatrol.agent.roster import Attempt
from rankpatrol.agent.voice import Voice
from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import say_duration
from rankpatrol.incident.records import IncidentState, WaitsFor
from rankpatrol.journal import Journal
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import Binding, JobSpec, RankPlace, ResumePoint, RunDir
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock

_NO_ROOM = "a hang may not be recovered, and new ranks are not seen, until some is made"
_PAUSE_FIELDS = ("by", "why", "since_unix_s", "scope")


class Teller:
    """One job's teller. It says each thing once, also over agents: what an earlier one told is adopted."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, clock: Clock, voice: Voice) -> None:
        self._spec, self._run_dir, self._clock, self.voice = spec, run_dir, clock, voice
        self.courier = Courier("job-directory")
        self.journal = Journal(run_dir.spool, Path(spec.job_dir), self.courier, clock)
        self.begun: set[int] = set()
        self.ended: set[int] = set()
        self._phase: str | None = None
        self._step: int | None = None
        self._pause: dict[str, Any] | None = None
        self._unseen: set[int] = set()
        self.run_dir_full: str | None = None

    def attempt_begins(self, attempt: Attempt) -> None:
        """An attempt whose ranks are known."""
        if not self.begun:
            launched = {"launched_unix_s": round(self._spec.started_unix_s, 3)}
            self.journal.tell("job_started", attempt.number, command=self._spec.command, ranks=attempt.world_size(), **launched)
        self.begun.add(attempt.number)
        self._phase = self._step = None
        first, bindings = attempt.places[0], self._run_dir.bindings(attempt.number)
        ranks = {str(place.rank): _rank(place, bindings.get(place.rank)) for place in attempt.places}
        counts = {"scheduler_restarts": first.scheduler_restarts, "torchrun_restarts": first.torchrun_restarts}
        resume = self._run_dir.read(f"resume/{attempt.number}.json", ResumePoint)
        suspects = {"suspect_files": resume.suspect_files} if resume is not None and resume.suspect_files else {}
        self.journal.tell("attempt_started", attempt.number, ranks=ranks, **counts, **suspects)
        resumed = (
            f", told to beware of {', '.join(dict.fromkeys(each.file for each in resume.suspect_files))}" if resume and suspects else ""
        )
        if resume is not None and resume.checkpoint:
            self.journal.tell("resumed", attempt.number, checkpoint=resume.checkpoint, step=resume.step)
            resumed = f", resuming from {Path(resume.checkpoint).name}{resumed}"
        self.voice.say(f"watching {say_count(attempt.world_size(), 'rank')}, attempt {attempt.number}{resumed}")

    def attempt_ends(self, attempt: Attempt, *, ordered: bool) -> None:
        """An attempt of which no rank is left."""
        statuses = attempt.exit_statuses()
        if any(seen.by_request for seen in attempt.exits.values()):
            reason = "ended_by_rankpatrol"
        elif ordered:
            reason = "ordered"
        else:
            reason = "finished" if all(status == 0 for status in statuses.values()) else "failed"
        codes = {str(rank): status for rank, status in statuses.items()}
        self.journal.tell("attempt_ended", attempt.number, reason=reason, exit_codes=codes)

    def phase(self, attempt: Attempt, marked: Iterable[str | None], *, joined: bool) -> None:
        """What the attempt is in, where that is new: by its ranks' marked phases, or by their having `joined`."""
        phase = phase_of_job(self._phase, marked, joined=joined)
        if phase != self._phase:
            self._phase = phase
            self.journal.tell("phase", attempt.number, rank=None, phase=phase)

    @property
    def phase_now(self) -> str | None:
        """What was told last of this attempt, or None before the first word."""
        return self._phase

    def progress(self, attempt: Attempt, step: int | None) -> None:
        """How far the attempt is, where that is new."""
        if step is not None and step != self._step:
            self._step = step
            self.journal.tell("progress", attempt.number, step=step)

    def step(self, state: IncidentState, report: StepReport) -> None:
        """One step of an action, before it is done and after."""
        why = {"why": report.why} if report.done is False or (report.done and report.why and report.what == "end_attempt") else {}
        fields = {"what": report.what, "target": report.target, "bundle": report.bundle, "done": report.done, **why}
        self.journal.tell("action", state.attempt, incident=state.incident, **fields)

    def job_ends(self, attempt: int, exit_code: int | None, reason: str) -> None:
        """The last event."""
        if not self.begun:
            self.journal.tell("job_started", attempt, command=self._spec.command, ranks=None)
        self.journal.tell("job_ended", attempt, exit_code=exit_code, reason=reason)

    def farewell(self, exit_code: int | None, reason: str) -> None:
        """The last line to the user."""
        took = say_duration(max(0.0, self._clock.unix_s() - self._spec.started_unix_s))
        self.voice.rest()
        code = "exit code not known" if exit_code is None else f"exit code {exit_code}"
        # What a braked job's last lines are is its launcher's own report, of any length.
        told = f"; the rest: rankpatrol why {shlex.quote(self._spec.job_dir)}" if reason == "stopped" else ""
        self.voice.say(f"the job has ended after {took}: {reason}, {code}{told}", "good" if exit_code == 0 else "plain")

    def pause(self, attempt: int, pause: Pause | None) -> None:
        """That nobody acts, or acts again, where that is new."""
        told = (
            None
            if pause is None
            else {"by": pause.by, "why": pause.why, "since_unix_s": round(pause.since_unix_s, 3), "scope": pause.scope}
        )
        if told == self._pause or not self.begun:
            return
        self._pause = told
        if pause is None or told is None:
            self.journal.tell("unpaused", attempt)
            self.voice.say("actions are taken again", "good")
            return
        self.journal.tell("paused", attempt, **told)
        self.voice.say(f"{say_pause(pause)}; watching goes on", "alert")

    def adopt_pause(self, events: Iterable[Mapping[str, Any]]) -> None:
        """What an earlier agent told of pauses last."""
        for event in events:
            if event["kind"] in {"paused", "unpaused"}:
                self._pause = {name: event[name] for name in _PAUSE_FIELDS} if event["kind"] == "paused" else None

    def unseen(self, attempt: Attempt, why: str) -> None:
        """What permission is missing to see ranks; once an attempt."""
        if attempt.number in self._unseen:
            return
        self._unseen.add(attempt.number)
        self.journal.tell("signal", attempt.number, what=why)
        self.voice.say(f"{why}. `rankpatrol doctor` tells what is missing", "alert")

    def room(self, attempt: Attempt, *, full: bool) -> None:
        """That the run directory is full, or has room again, where that is new: little can be done about a hang then."""
        if full and self.run_dir_full is None:
            self.journal.tell("signal", attempt.number, what=f"no room in the run directory {self._run_dir.path}")
            self.voice.say(f"no room in {self._run_dir.path}: {_NO_ROOM}", "alert")
        elif self.run_dir_full is not None and not full:
            self.voice.say(f"there is room again in {self._run_dir.path}", "good")
        self.run_dir_full = str(self._run_dir.path) if full else None

    def refused(self, attempt: int, incident: int, why: str) -> None:
        """An answer that came too late, or to no question."""
        self.journal.tell("answer_refused", attempt, incident=incident, why=why)
        self.voice.say(f"the answer to incident {incident} is refused: {why}", "alert")

    def one_line(self, attempt: Attempt, step: int | None, incident: IncidentState | None, pause: Pause | None) -> str:
        """What is going on, for the live line."""
        step_words = f" · step {step}" if step is not None else ""
        trouble = f" · incident {incident.incident} {incident.stage}" if incident is not None else ""
        asks = " · waits for an answer (rankpatrol status)" if incident is not None and incident.waits_for is WaitsFor.ANSWER else ""
        held = f" · {say_pause(pause)}" if pause is not None else ""
        held += " · no room in the run directory (rankpatrol status)" if self.run_dir_full else ""
        who = f"{say_count(attempt.world_size(), 'rank')} · attempt {attempt.number}"
        return f"{who}{step_words} · {self._phase or 'starting'}{trouble}{asks}{held}"


def say_pause(pause: Pause) -> str:
    """Since when nobody acts, by whom and why."""
    since = time.strftime("%H:%M:%S", time.localtime(pause.since_unix_s))
    return f"actions are paused since {since} by {pause.by}" + (f" ({pause.why})" if pause.why else "")


def _rank(place: RankPlace, binding: Binding | None) -> dict[str, Any]:
    bound = {} if binding is None else {"binding": as_event(binding)}
    return {"node": place.node, "pid": place.pid, "shim_pid": place.shim_pid, **bound}
