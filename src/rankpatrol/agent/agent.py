"""One agent for one job on one machine: a cycle a second, each a few small steps, none of which the training waits for."""

import contextlib
from pathlib import Path

from rankpatrol.act.plan import Verified, next_start
from rankpatrol.agent.checkpoint_watch import verified
from rankpatrol.agent.crash_watch import look_at_crash
from rankpatrol.agent.desk import IncidentDesk
from rankpatrol.agent.eyes import Eyes, all_joined
from rankpatrol.agent.recovery import CARRY_S, CHECK_S, Recovery
from rankpatrol.agent.roster import Attempt, current_attempt, read_attempt
from rankpatrol.agent.status import JobView, state_of
from rankpatrol.agent.teller import Teller
from rankpatrol.agent.voice import Voice
from rankpatrol.analysis.aftermath import aftermath
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.incident.records import FINAL_VERDICTS, IncidentPolicy, Stage
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
from rankpatrol.launch.rundir import JobSpec, LauncherExit, OrderedEnd, Released, ResumePoint, RunDir, launcher_of
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic
from rankpatrol.system.process import identify


class Agent:
    """The patrol of one job. Everything it needs to go on is in the run directory."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, clock: Clock, voice: Voice) -> None:
        self._spec, self._run_dir, self._clock = spec, run_dir, clock
        self._teller = Teller(spec, run_dir, clock, voice)
        self._eyes = Eyes(spec.job, Path(spec.job_dir), clock)
        self._recovery = Recovery(spec, run_dir, self._eyes, clock, self._teller)
        self._policy = Policy(patience_s=spec.patience_s)
        self._judge_state = JudgeState()
        self._published: Verified | None = None
        self.desk = IncidentDesk(IncidentPolicy(act=spec.policy == "recover"), self._teller.journal, self._recovery, clock)

    def adopt(self, begun: set[int], ended: set[int]) -> None:
        """Go on where an earlier agent stopped: what it has told is not told again, and the judge starts to look afresh."""
        self._teller.begun, self._teller.ended = begun, ended
        open_attempts = sorted(begun - ended)
        if open_attempts:
            self._start_judging(read_attempt(self._run_dir, open_attempts[-1]))
        self.desk.adopt(self._run_dir.spool)

    def glance(self) -> None:
        """Between two rounds: has a rank failed? Its shim holds that exit back until the evidence of the others is taken."""
        self._follow_attempts()
        attempt = self._eyes.attempt
        if attempt is None or all(seen.exit_status == 0 for seen in attempt.exits.values()) or self._is_released(attempt):
            return
        by_request = any(seen.by_request for seen in attempt.exits.values())
        try:
            if not by_request and self._ordered() is None:
                self._crash(attempt)
            if not self._spec.checkpoints:
                self._fix_resume_point(attempt.number + 1)  # no shim waits for it: it must stand before they start
        finally:
            self._run_dir.write_first(_released(attempt), Released(at_unix_s=self._clock.unix_s()))

    def cycle(self) -> str:
        """One round, after a glance; returns what is going on in one line."""
        self._publish_newest_good()
        attempt = self._eyes.attempt
        if attempt is None or attempt.number in self._teller.ended:
            return "waiting for ranks"
        if attempt.over():
            self._end_attempt(attempt)
        elif attempt.complete():
            self._watch(attempt)
        self._write_state()
        return self._teller.one_line(attempt, self._eyes.best_step(), self.desk.open_incident())

    def finished(self) -> bool:
        """True once CMD has ended; the last events are then written."""
        if not self._run_dir.path.exists():
            return True  # somebody removed it: there is nothing left to follow, and nowhere to write
        ended = self._run_dir.read("launcher_exit.json", LauncherExit)
        launcher = launcher_of(self._run_dir)
        if ended is None and (launcher is None or identify(launcher.pid) == launcher):
            return False
        self._follow_attempts()
        if self._eyes.attempt is not None and self._eyes.attempt.number not in self._teller.ended:
            self._end_attempt(self._eyes.attempt)
        self._end_job(None if ended is None else ended.exit_code)
        return True

    def _follow_attempts(self) -> None:
        seen, before = current_attempt(self._run_dir), self._eyes.attempt
        if seen is None:
            return
        if before is not None and seen.number != before.number and before.number not in self._teller.ended:
            self._end_attempt(read_attempt(self._run_dir, before.number))
        self._fix_resume_point(seen.number)
        if before is None or seen.number != before.number:
            self._eyes.begin(seen)
        self._eyes.attempt = seen
        if seen.complete():
            self._begin_attempt(seen)

    def _fix_resume_point(self, number: int) -> None:
        """Its shims wait for this word; after a crash nobody has said it yet."""
        outlook = self.desk.outlook()
        if number == 0 or not (self._spec.checkpoints or outlook.says_something()):
            return
        if self._run_dir.read(f"resume/{number}.json", ResumePoint) is None:
            good = verified(self._recovery.checkpoints.now(CHECK_S)) if self._spec.checkpoints else None
            with contextlib.suppress(OSError):
                self._recovery.scheduler.resume_from(next_start(number, good, outlook))

    def _publish_newest_good(self) -> None:
        """For shims that must start without us: what was verified last."""
        good = verified(self._recovery.checkpoints.latest())
        if good is not None and good != self._published:
            self._published = good
            suspects = self.desk.outlook().suspect_files
            self._run_dir.write("newest_good.json", ResumePoint(checkpoint=good.path, step=good.step, by="agent", suspect_files=suspects))

    def _begin_attempt(self, attempt: Attempt) -> None:
        if attempt.number not in self._teller.begun:
            since = None if self._teller.begun else self._recovery.queued_since()
            self._teller.attempt_begins(attempt)
            if since is not None:
                self._teller.journal.tell("queued", attempt.number, since=since)
            self._recovery.lemons.began(attempt)
            self._start_judging(attempt)

    def _start_judging(self, attempt: Attempt) -> None:
        self._eyes.begin(attempt)
        self._judge(AttemptBegan(at_s=self._clock.mono_s(), attempt=attempt.number, world_size=attempt.world_size()))

    def _watch(self, attempt: Attempt) -> None:
        activities = self._eyes.light()
        marked = (activity.phase for activity in activities if not activity.ended)
        self._teller.phase(attempt, marked, joined=all_joined(activities))
        self._teller.progress(attempt, self._eyes.best_step())
        # A job that was told to end is not judged: what stands still now only waits for its turn to go.
        if self._ordered() is None:
            self._judge(Observed(at_s=self._clock.mono_s(), ranks=activities))

    def _judge(self, event: Event) -> None:
        self._judge_state, findings = step(self._judge_state, event, self._policy)
        for finding in findings:
            self._follow(finding)

    def _follow(self, finding: Finding) -> None:
        attempt = self._eyes.attempt
        if attempt is None:
            return
        match finding:
            case LookCloser():
                if not self._judge_state.suspected:
                    self._teller.journal.tell("signal", attempt.number, what=finding.why)
                self._judge(Looked(at_s=self._clock.mono_s(), diagnosis=self._look()))
            case Suspected():
                self.desk.suspect(attempt.number, self._unix_s(finding.onset_s), finding.diagnosis, quiet=finding.quiet)
            case TimeoutNears():
                self.desk.timeout_nears(finding.fires_in_s, finding.timeout_s)
            case Judged():
                self.desk.judged(self._unix_s(finding.onset_s), finding.diagnosis, self._eyes.best_step(), self._teller.phase_now)
            case Resumed():
                self._eyes.calm()
                self.desk.progress_returned()

    def _look(self) -> Diagnosis:
        """Stacks first; where they leave it open because all ranks wait in collectives, or one has left, flight recordings too."""
        self._eyes.look()
        found = diagnose(tuple(self._eyes.looks))
        if found.verdict == "undetermined" and len(found.victim_ranks) < self._eyes.looks[-1].world_size:
            return found
        if found.verdict in {"undetermined", "crash"}:
            self._eyes.add_recordings()
            found = diagnose(tuple(self._eyes.looks))
        return found

    def _crash(self, attempt: Attempt) -> None:
        """Name who ended first, and seal, before the launcher hears of it. After an alert it is told what that has to do with it."""
        alerted = self.desk.open_incident()
        if alerted is not None and alerted.stage is not Stage.ALERTED:
            return
        self._begin_attempt(attempt)
        self._eyes.light()
        found = look_at_crash(self._run_dir, self._eyes, self._clock)
        if found is not None and alerted is not None:
            self.desk.judged(alerted.onset_unix_s, aftermath(alerted.diagnosis, found), self._eyes.best_step(), self._teller.phase_now)
        elif found is not None:
            exits = self._eyes.attempt.exits if self._eyes.attempt else attempt.exits
            onset_unix_s = min(seen.ended_unix_s for seen in exits.values())
            self.desk.suspect(attempt.number, onset_unix_s, found)
            self.desk.judged(onset_unix_s, found, self._eyes.best_step(), self._teller.phase_now)

    def _is_released(self, attempt: Attempt) -> bool:
        return self._run_dir.read(_released(attempt), Released) is not None

    def _end_attempt(self, attempt: Attempt) -> None:
        self._teller.ended.add(attempt.number)
        if attempt.number not in self._teller.begun:
            return
        ordered = self._ordered() is not None
        self._teller.progress(attempt, self._eyes.best_step())
        self._teller.attempt_ends(attempt, ordered=ordered)
        self.desk.attempt_ended(ordered=ordered)

    def _end_job(self, exit_code: int | None) -> None:
        ordered = self._ordered()
        stopped = self.desk.state is not None and self.desk.state.diagnosis.verdict in FINAL_VERDICTS
        reason = f"ordered by {ordered.signal}" if ordered else "finished" if exit_code == 0 else "stopped" if stopped else "failed"
        if self._spec.attached and exit_code is None:
            reason = "ended"  # nobody whose child it was has told us how
        self._teller.job_ends(self._eyes.attempt.number if self._eyes.attempt else 0, exit_code, reason)
        self._write_state(ended=reason)
        if not self._teller.courier.delivered(CARRY_S):
            self._run_dir.write("undelivered.json", Released(at_unix_s=self._clock.unix_s()))
            self._teller.voice.say(f"the job directory does not answer: its records stay in {self._run_dir.spool}", "alert")
        self._teller.farewell(exit_code, reason)

    def _write_state(self, ended: str | None = None) -> None:
        view = JobView(self._spec, self._eyes, self._judge_state, self.desk.state, self._recovery.checkpoints.latest(), ended)
        content = state_of(view, self._clock)
        path = Path(self._spec.job_dir) / "state.json"
        self._teller.courier.send(lambda: write_atomic(path, content), instead_of="state.json")

    def _ordered(self) -> OrderedEnd | None:
        return self._run_dir.read("ending.json", OrderedEnd)

    def _unix_s(self, mono_s: float) -> float:
        return self._clock.unix_s() - (self._clock.mono_s() - mono_s)


def _released(attempt: Attempt) -> str:
    return f"released.{attempt.number}.json"
