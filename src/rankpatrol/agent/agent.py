"""One agent for one job on one machine: a cycle a second, each a few small steps, none of which the training waits for."""

import contextlib
from pathlib import Path

import msgspec

from rankpatrol.act.execute import StepReport, execute
from rankpatrol.act.plan import ActionPlan, Verified, plan, stop
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.desk import IncidentDesk
from rankpatrol.agent.eyes import Eyes, all_joined
from rankpatrol.agent.roster import Attempt, current_attempt, read_attempt
from rankpatrol.agent.sealing import Sealer
from rankpatrol.agent.status import write_state
from rankpatrol.agent.voice import Voice
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import KernelKills
from rankpatrol.evidence.bundle import reopen
from rankpatrol.evidence.host import kernel_log
from rankpatrol.evidence.shelf import shelve
from rankpatrol.formats.kernel_log import kills
from rankpatrol.incident.records import IncidentPolicy, IncidentState
from rankpatrol.journal import Journal
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
)
from rankpatrol.launch.rundir import JobSpec, LauncherExit, OrderedEnd, Released, ResumePoint, RunDir, launcher_of
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock
from rankpatrol.system.process import identify

# How long a new attempt may wait for the checkpoint check; its shims wait a little longer (RESUME_WAIT_S) before they go on alone.
_CHECK_S = 15.0
# A bundle is a few MB: a job directory that has not taken it by then does not answer, and nobody waits for it.
_CARRY_S = 5.0
# A victim's connection breaks before the culprit's interpreter has gone down; 2.7 s were measured for that.
_ECHO_WAIT_S, _ECHO_POLL_S = 4.0, 0.2


class NotRecovered(PatrolError):
    """A step of the recovery was not done."""

    help = "events.jsonl says which step and why. A rank in D state cannot be ended by anybody: the machine or its storage must be mended."


class Agent:
    """The patrol of one job. Everything it needs to go on is in the job directory and the run directory."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, clock: Clock, voice: Voice) -> None:
        self.spec, self.run_dir, self.clock, self.voice = spec, run_dir, clock, voice
        self.job_dir = Path(spec.job_dir)
        self.courier = Courier("job-directory")
        self.journal = Journal(run_dir.spool, self.job_dir, self.courier, clock)
        self.scheduler = LocalScheduler(run_dir)
        self.checkpoints = CheckpointWatch(spec.checkpoints)
        self.policy = Policy(patience_s=spec.patience_s)
        self.desk = IncidentDesk(IncidentPolicy(act=spec.policy == "recover"), self.journal, self, clock)
        self.sealer = Sealer(spec, run_dir, clock)
        self.eyes = Eyes(spec.job, self.job_dir, clock)
        self.judge = JudgeState()
        self.attempt: Attempt | None = None
        self._announced: set[int] = set()
        self._ended: set[int] = set()
        self._released: set[int] = set()
        self._published: Verified | None = None
        self._phase: str | None = None
        self._step_told: int | None = None

    def adopt(self, announced: set[int], ended: set[int]) -> None:
        """Go on where an earlier agent stopped: what it has told is not told again, and the judge starts to look afresh."""
        self._announced, self._ended = announced, ended
        open_attempts = sorted(announced - ended)
        if open_attempts:
            self.attempt = read_attempt(self.run_dir, open_attempts[-1])
            self._judge(AttemptBegan(at_s=self.clock.mono_s(), attempt=self.attempt.number, world_size=self.attempt.world_size()))
        self.desk.adopt(self.run_dir.spool)

    def glance(self) -> None:
        """Between two rounds: has a rank failed? Its shim holds that exit back until the evidence of the others is taken."""
        self._follow_attempts()
        attempt = self.attempt
        if attempt is None or attempt.number in self._released or all(seen.exit_status == 0 for seen in attempt.exits.values()):
            return
        by_request = any(seen.by_request for seen in attempt.exits.values())
        try:
            if not by_request and self._ordered() is None and self.desk.open_incident() is None:
                self._crash(attempt)
        finally:
            self._released.add(attempt.number)
            self.run_dir.write_first(f"released.{attempt.number}.json", Released(at_unix_s=self.clock.unix_s()))

    def cycle(self) -> str:
        """One round; returns what is going on in one line."""
        self._follow_attempts()
        self._publish_newest_good()
        attempt = self.attempt
        if attempt is None or attempt.number in self._ended:
            return "waiting for ranks"
        if attempt.over():
            self._end_attempt(attempt)
        elif attempt.complete():
            self._watch(attempt)
        write_state(self)
        return self._status(attempt)

    def finished(self) -> bool:
        """True once CMD has ended; the last events are then written."""
        if not self.run_dir.path.exists():
            return True  # somebody removed it: there is nothing left to follow, and nowhere to write
        ended = self.run_dir.read("launcher_exit.json", LauncherExit)
        launcher = launcher_of(self.run_dir)
        if ended is None and (launcher is None or identify(launcher.pid) == launcher):
            return False
        self._follow_attempts()
        if self.attempt is not None and self.attempt.number not in self._ended:
            self._end_attempt(self.attempt)
        self._tell_job_end(ended)
        return True

    # What the incident desk needs done (desk.Hands).

    def put_aside(self) -> None:
        """Keep the looks at hand for a later seal."""
        self.sealer.put_aside(tuple(self.eyes.looks))

    def seal(self, state: IncidentState, *, fresh: bool, spare: bool) -> Path:
        """Look once more where the ranks are still there, seal on the local disk, and have the bundle carried to the job directory."""
        if fresh and self.attempt is not None:
            self.eyes.look_whole(self.attempt)
        root = self.job_dir if spare else self.run_dir.spool
        sealed = self.sealer.seal(root, state, tuple(self.eyes.looks) if fresh else (), self._context())
        return sealed if spare else self._carry_bundle(sealed)

    def _carry_bundle(self, sealed: Path) -> Path:
        """Where people find the bundle: in the job directory, or here while that does not answer."""
        final = self.job_dir / "incidents" / sealed.name
        self.courier.send(lambda: shelve(sealed, final))
        return final if self.courier.delivered(_CARRY_S) and final.exists() else sealed

    def recover(self, state: IncidentState, bundle: str) -> None:
        """End the attempt through the scheduler, from a checkpoint that was verified. Raises PatrolError."""
        local = self.run_dir.spool / "incidents" / str(state.incident)
        proof = reopen(local if local.exists() else Path(bundle))
        wanted = self._plan(state)
        if not execute(wanted, proof, self.scheduler, self.clock, lambda report: self._tell_step(state, report)):
            raise NotRecovered(f"attempt {state.attempt} could not be ended")

    def _plan(self, state: IncidentState) -> ActionPlan:
        if state.diagnosis.verdict == "stop":
            self.voice.say("ending the job: another attempt would only fail again", "verdict")
            return stop(job=self.spec.job, attempt=state.attempt, incident=state.incident)
        checkpoint = verified(self.checkpoints.now(_CHECK_S)) if self.spec.checkpoints else None
        where = f"from {Path(checkpoint.path).name}" if checkpoint else "from the script's own choice"
        self.voice.say(f"ending attempt {state.attempt}; the next one resumes {where}", "verdict")
        return plan(job=self.spec.job, attempt=state.attempt, incident=state.incident, checkpoint=checkpoint)

    def announce(self, what: str, style: str) -> None:
        """Tell the user."""
        self.voice.say(what, style)

    # The steps of a cycle.

    def _follow_attempts(self) -> None:
        seen = current_attempt(self.run_dir)
        if seen is None:
            return
        if self.attempt is not None and seen.number != self.attempt.number and self.attempt.number not in self._ended:
            self._end_attempt(read_attempt(self.run_dir, self.attempt.number))
        self._fix_resume_point(seen.number)
        self.attempt = seen
        if seen.complete() and seen.number not in self._announced:
            self._begin_attempt(seen)

    def _fix_resume_point(self, number: int) -> None:
        """Its shims wait for this word; after a crash nobody has said it yet."""
        if number == 0 or not self.spec.checkpoints or self.run_dir.read(f"resume/{number}.json", ResumePoint) is not None:
            return
        good = verified(self.checkpoints.now(_CHECK_S))
        with contextlib.suppress(OSError):
            self.scheduler.resume_from(number, good.path if good else "", good.step if good else None)

    def _publish_newest_good(self) -> None:
        """For shims that must start without us: what was verified last."""
        good = verified(self.checkpoints.latest())
        if good is not None and good != self._published:
            self._published = good
            self.run_dir.write("newest_good.json", ResumePoint(checkpoint=good.path, step=good.step, by="agent"))

    def _begin_attempt(self, attempt: Attempt) -> None:
        if not self._announced:
            self.journal.tell("job_started", attempt.number, command=self.spec.command, ranks=attempt.world_size())
        self._announced.add(attempt.number)
        first = attempt.places[0]
        ranks = {str(place.rank): {"node": place.node, "pid": place.pid, "shim_pid": place.shim_pid} for place in attempt.places}
        counts = {"scheduler_restarts": first.scheduler_restarts, "torchrun_restarts": first.torchrun_restarts}
        self.journal.tell("attempt_started", attempt.number, ranks=ranks, **counts)
        resume = self.run_dir.read(f"resume/{attempt.number}.json", ResumePoint)
        if resume is not None and resume.checkpoint:
            self.journal.tell("resumed", attempt.number, checkpoint=resume.checkpoint, step=resume.step)
        self.eyes = Eyes(self.spec.job, self.job_dir, self.clock)
        self._phase = self._step_told = None
        self._judge(AttemptBegan(at_s=self.clock.mono_s(), attempt=attempt.number, world_size=attempt.world_size()))
        resumed = f", resuming from {Path(resume.checkpoint).name}" if resume is not None and resume.checkpoint else ""
        self.voice.say(f"watching {attempt.world_size()} ranks, attempt {attempt.number}{resumed}")

    def _watch(self, attempt: Attempt) -> None:
        activities = self.eyes.light(attempt)
        self._tell_progress(attempt, "training" if self._phase == "training" or all_joined(activities) else "starting")
        # A job that was told to end is not judged: what stands still now only waits for its turn to go.
        if self._ordered() is None:
            self._judge(Observed(at_s=self.clock.mono_s(), ranks=activities))

    def _judge(self, event: Event) -> None:
        self.judge, findings = step(self.judge, event, self.policy)
        for finding in findings:
            self._follow(finding)

    def _follow(self, finding: Finding) -> None:
        attempt = self.attempt
        if attempt is None:
            return
        match finding:
            case LookCloser():
                if not self.judge.suspected:
                    self.journal.tell("signal", attempt.number, what=finding.why)
                self.eyes.look(attempt)
                self._judge(Looked(at_s=self.clock.mono_s(), diagnosis=diagnose(tuple(self.eyes.looks))))
            case Suspected():
                self.desk.suspect(attempt.number, self._unix_s(finding.onset_s), finding.diagnosis, quiet=finding.quiet)
            case Judged():
                self.desk.judged(self._unix_s(finding.onset_s), finding.diagnosis, self.eyes.best_step())
            case Resumed():
                self.eyes.calm()
                self.desk.progress_returned()

    def _crash(self, attempt: Attempt) -> None:
        """Name who ended first. Where only echoes are seen yet, the first cause may need a moment: its interpreter is still going down."""
        if attempt.number not in self._announced:
            self._begin_attempt(attempt)
        until_s = self.clock.mono_s() + _ECHO_WAIT_S
        while True:
            found = self._look_at_crash(attempt)
            if found is None or found.culprit_ranks or self.clock.mono_s() >= until_s:
                break
            self.clock.sleep(_ECHO_POLL_S)
            attempt = self.attempt = read_attempt(self.run_dir, attempt.number)
        if found is not None:
            onset_unix_s = min(seen.ended_unix_s for seen in attempt.exits.values())
            self.desk.suspect(attempt.number, onset_unix_s, found)
            self.desk.judged(onset_unix_s, found, self.eyes.best_step())

    def _look_at_crash(self, attempt: Attempt) -> Diagnosis | None:
        log = kernel_log()
        seen = msgspec.structs.replace(
            self.eyes.look(attempt, full=True), kills=log if isinstance(log, Missing) else KernelKills(kills(log))
        )
        self.eyes.keep_last(seen)
        return diagnose_crash(seen)

    def _end_attempt(self, attempt: Attempt) -> None:
        self._ended.add(attempt.number)
        if attempt.number not in self._announced:
            return
        ordered = self._ordered() is not None
        statuses = attempt.exit_statuses()
        if any(seen.by_request for seen in attempt.exits.values()):
            reason = "ended_by_rankpatrol"
        elif ordered:
            reason = "ordered"
        else:
            reason = "finished" if all(status == 0 for status in statuses.values()) else "failed"
        codes = {str(rank): status for rank, status in statuses.items()}
        self._tell_progress(attempt, self._phase)
        self.journal.tell("attempt_ended", attempt.number, reason=reason, exit_codes=codes)
        self.desk.attempt_ended(ordered=ordered)

    # What is told.

    def _tell_progress(self, attempt: Attempt, phase: str | None) -> None:
        if phase != self._phase:
            self._phase = phase
            self.journal.tell("phase", attempt.number, rank=None, phase=phase)
        best = self.eyes.best_step()
        if best is not None and best != self._step_told:
            self._step_told = best
            self.journal.tell("progress", attempt.number, step=best)

    def _tell_step(self, state: IncidentState, report: StepReport) -> None:
        self.journal.tell(
            "action",
            state.attempt,
            incident=state.incident,
            what=report.what,
            target=report.target,
            bundle=report.bundle,
            done=report.done,
            **({"why": report.why} if report.done is False else {}),
        )

    def _tell_job_end(self, ended: LauncherExit | None) -> None:
        ordered = self._ordered()
        code = None if ended is None else ended.exit_code
        stopped = self.desk.state is not None and self.desk.state.diagnosis.verdict == "stop"
        reason = f"ordered by {ordered.signal}" if ordered else "finished" if code == 0 else "stopped" if stopped else "failed"
        number = self.attempt.number if self.attempt else 0
        if not self._announced:
            self.journal.tell("job_started", number, command=self.spec.command, ranks=None)
        self.journal.tell("job_ended", number, exit_code=code, reason=reason)
        write_state(self, job_ended=reason)
        took = say_duration(max(0.0, self.clock.unix_s() - self.spec.started_unix_s))
        if not self.courier.delivered(_CARRY_S):
            self.run_dir.write("undelivered.json", Released(at_unix_s=self.clock.unix_s()))
            self.voice.say(f"the job directory does not answer: its records stay in {self.run_dir.spool}", "alert")
        self.voice.rest()
        self.voice.say(f"the job has ended after {took}: {reason}, exit code {code}", "good" if code == 0 else "plain")

    def _ordered(self) -> OrderedEnd | None:
        return self.run_dir.read("ending.json", OrderedEnd)

    def _status(self, attempt: Attempt) -> str:
        best = self.eyes.best_step()
        step_words = f" · step {best}" if best is not None else ""
        state = self.desk.open_incident()
        trouble = f" · incident {state.incident} {state.stage}" if state is not None else ""
        return f"{attempt.world_size()} ranks · attempt {attempt.number}{step_words} · {self._phase or 'starting'}{trouble}"

    def _context(self) -> dict[str, object]:
        return {"scheduler": self.scheduler.describe(), "checkpoints": self.checkpoints.latest()}

    def _unix_s(self, mono_s: float) -> float:
        return self.clock.unix_s() - (self.clock.mono_s() - mono_s)
