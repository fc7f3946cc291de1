"""One agent for one job on one machine: a cycle a second, each a few small steps, none of which the training waits for."""

import contextlib
from pathlib import Path

from rankpatrol.act.plan import Verified, next_start
from rankpatrol.agent.answers import refusal, take_answer
from rankpatrol.agent.asides import Asides
from rankpatrol.agent.checkpoint_watch import verified
from rankpatrol.agent.crash_watch import crash_found, look_at_crash, look_at_raise
from rankpatrol.agent.desk import IncidentDesk
from rankpatrol.agent.eyes import Eyes, all_joined
from rankpatrol.agent.handing_over import hand_over
from rankpatrol.agent.launcher_watch import LauncherWatch
from rankpatrol.agent.looking import forbidden, look_closely
from rankpatrol.agent.metrics_post import Keeper, MetricsPost, agent_now, keeper_of, post_of
from rankpatrol.agent.nodes.others import Alone, Others
from rankpatrol.agent.orphan_watch import OrphanWatch
from rankpatrol.agent.pace_watch import PaceWatch
from rankpatrol.agent.recorder import recorder_of
from rankpatrol.agent.recovery import CARRY_S, CHECK_S, Recovery
from rankpatrol.agent.roster import Attempt, Roster
from rankpatrol.agent.status import JobView, state_of
from rankpatrol.agent.teller import Teller
from rankpatrol.agent.voice import Voice
from rankpatrol.analysis.aftermath import aftermath, still_there
from rankpatrol.incident.records import FINAL_VERDICTS, IncidentPolicy, Stage, WaitsFor
from rankpatrol.journal import read_events
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
    SetAside,
    Suspected,
    TimeoutNears,
)
from rankpatrol.judge.tape import AttemptOver
from rankpatrol.launch.left_behind import FOR_GOOD, MOST_S
from rankpatrol.launch.rundir import JobSpec, LauncherExit, OrderedEnd, Released, ResumePoint, RunDir
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

# What a job left is looked for before its records go: three scans, and most processes end at SIGTERM.
ORPHANS_S = 6.0
# The other nodes' launchers end with ours, or are ended by it; their last words shall be in the record.
_LAST_WORDS_S = 5.0
# A row of state.json for each rank: those of a large job are written every few seconds.
_STATE_RANKS, _STATE_RANKS_A_SECOND, _STATE_MOST_S = 64, 160, 5.0
_ALONE = Alone()


class Agent:
    """The patrol of one job. Everything it needs to go on is in the run directory."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, clock: Clock, voice: Voice, others: Others = _ALONE) -> None:
        self._spec, self._run_dir, self._clock, self._others = spec, run_dir, clock, others
        self._roster = Roster(run_dir, others)
        self._launcher = LauncherWatch(run_dir, clock)
        self._teller = Teller(spec, run_dir, clock, voice)
        self._eyes = Eyes(spec.job, Path(spec.job_dir), clock, others)
        self._recovery = Recovery(spec, run_dir, self._eyes, clock, self._teller)
        self._orphans = OrphanWatch(spec, run_dir, self._teller)
        self._policy = Policy(patience_s=spec.patience_s)
        self._judge_state = JudgeState()
        self._published: Verified | None = None
        self._launcher_gone_at_s: float | None = None
        self._seen_alone: set[int] = set()
        self._state_due_at_s = float("-inf")
        policy = IncidentPolicy(act=spec.policy != "observe", ask=spec.policy == "ask", budget=spec.budget)
        self.desk = IncidentDesk(policy, self._teller.journal, self._recovery, clock)
        self._recorder = recorder_of(spec, run_dir, self._teller.courier, clock, voice)
        self._recorder.begin(self._policy, self._judge_state)
        self._metrics: MetricsPost = post_of(spec, self._teller, clock)
        self._asides = Asides(self._teller.journal, self._recovery, self.desk.next_number, clock)
        self._pace = PaceWatch(self._eyes, self._asides, clock)

    def keep_readings(self) -> Keeper:
        """Before anything else: keep this job's readings for whoever serves those of many."""
        keeper = keeper_of(self._spec, self._teller, self._clock)
        self._metrics = keeper
        return keeper

    def adopt(self, begun: set[int], ended: set[int]) -> None:
        """Go on where an earlier agent stopped: what it has told is not told again, and the judge starts to look afresh."""
        self._metrics.adopt(read_events(self._run_dir.spool))
        self._teller.journal.catch_up()
        self._teller.begun, self._teller.ended = begun, ended
        open_attempts = sorted(begun - ended)
        if open_attempts:
            self._start_judging(self._roster.read(open_attempts[-1]))
        self._teller.adopt_pause(read_events(self._run_dir.spool))
        self.desk.adopt(self._run_dir.spool)
        self._asides.adopt(self._run_dir.spool)

    def glance(self) -> None:
        """Between two rounds: has a rank failed? Its shim holds that exit back until the evidence of the others is taken."""
        self._follow_attempts()
        self._pace.peek()
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
            self._release(attempt)

    def cycle(self) -> str:
        """One round, after a glance; returns what is going on in one line."""
        self._publish_newest_good()
        self._orphans.tell()
        attempt = self._eyes.attempt
        if attempt is None or attempt.number in self._teller.ended:
            self._mind_people()
            self._metrics.publish(self._state())
            return "waiting for ranks"
        if attempt.over():
            self._end_attempt(attempt)
        elif attempt.complete():
            self._orphans.ranks_gone(attempt)
            self._watch(attempt)
        self._mind_people()
        self._teller.room(attempt, full=self._run_dir.is_full())
        if self._clock.mono_s() >= self._state_due_at_s:
            self._write_state()
        return self._teller.one_line(attempt, self._eyes.best_step(), self.desk.open_incident(), self._recovery.pause_known())

    def finished(self) -> bool:
        """True once CMD has ended; the last events are then written."""
        if not self._run_dir.path.exists():
            return True  # somebody removed it: there is nothing left to follow, and nowhere to write
        ended = self._launcher.told()
        if ended is None and not self._launcher.gone():
            return False
        if self._waits_for_last_words():
            return False
        self._follow_attempts()
        if ended is not None and self._left_behind(ended):
            return False
        if self._eyes.attempt is not None and self._eyes.attempt.number not in self._teller.ended:
            self._end_attempt(self._eyes.attempt)
        self._end_job(None if ended is None else ended.exit_code)
        return True

    def _waits_for_last_words(self) -> bool:
        now_s = self._clock.mono_s()
        self._launcher_gone_at_s = self._launcher_gone_at_s or now_s
        return not self._others.over() and now_s - self._launcher_gone_at_s < _LAST_WORDS_S

    def sees_something_odd(self) -> bool:
        """True while the judge looks closer, or an incident is open: rounds should come quickly."""
        return self._judge_state.looked_at_s is not None or self.desk.open_incident() is not None

    def ranks(self) -> int:
        """How many ranks the attempt has."""
        return self._eyes.attempt.world_size() if self._eyes.attempt else 0

    def leave(self) -> None:
        """The job goes on without us: somebody has told us to go. Where its scheduler ends us, nobody comes after us to carry our words."""
        self._metrics.leave()
        self._teller.courier.delivered(CARRY_S)

    def _left_behind(self, ended: LauncherExit) -> bool:
        """True while ranks outlive CMD though the user has ordered the end of all: their shims end them, and that is still our story."""
        attempt = self._eyes.attempt
        if attempt is None or attempt.over() or self._run_dir.read(FOR_GOOD, OrderedEnd) is None:
            return False
        return self._clock.unix_s() - ended.ended_unix_s < MOST_S

    def _mind_people(self) -> None:
        """What people have said since the last round: a pause, its end, an answer to the open question."""
        number = self._eyes.attempt.number if self._eyes.attempt else 0
        pause = self._recovery.pause_known()
        self._teller.pause(number, pause)
        before = self.desk.open_incident()
        if pause is None:
            self.desk.unpaused()
        answer = take_answer(self._run_dir)
        if answer is not None:
            why_not = refusal(answer, self.desk.open_incident(), pause)
            if why_not:
                self._teller.refused(number, answer.incident, why_not)
            else:
                self.desk.answered_yes(answer.by)
        if before is not None and before.waits_for is not None and self.desk.open_incident() is None:
            self._judge(SetAside(at_s=self._clock.mono_s()))

    def _follow_attempts(self) -> None:
        seen, before = self._roster.current(), self._eyes.attempt
        if seen is None:
            return
        if before is not None and seen.number != before.number and before.number not in self._teller.ended:
            self._end_attempt(self._roster.read(before.number))
        if before is not None and seen.number != before.number:
            self._recovery.set_bad_checkpoints_aside(seen.number)
        self._fix_resume_point(seen.number)
        self._recovery.scheduler.repeat(seen.number)
        if before is None or seen.number != before.number:
            self._eyes.begin(seen)
        self._eyes.attempt = seen
        if seen.complete():
            self._begin_attempt(seen)
        else:
            self._recovery.scheduler.remind()

    def _fix_resume_point(self, number: int) -> None:
        """Its shims wait for this word; after a crash nobody has said it yet."""
        if self._others.cut_off():
            return  # one word for all nodes, and it is the first one's: another here would start a part of the job from elsewhere
        outlook = self.desk.outlook()
        unasked = number == 0 and not self._spec.resumes and self._spec.cluster is None
        if unasked or not (self._spec.checkpoints or outlook.says_something()):
            return
        if self._run_dir.read(f"resume/{number}.json", ResumePoint) is None:
            goes_on = self._spec.checkpoints and (number > 0 or self._recovery.was_queued_again())
            good = verified(self._recovery.checkpoints.now(CHECK_S)) if goes_on else None
            with contextlib.suppress(OSError):
                self._recovery.scheduler.resume_from(next_start(number, good, outlook))

    def _publish_newest_good(self) -> None:
        """For shims that must start without us: what was verified last."""
        good = verified(self._recovery.checkpoints.latest())
        if good is not None and good != self._published:
            self._published = good
            suspects = self.desk.outlook().suspect_files
            point = ResumePoint(checkpoint=good.path, step=good.step, by="agent", suspect_files=suspects)
            self._others.greet_with(newest_good=point)
            self._run_dir.write("newest_good.json", point)

    def _begin_attempt(self, attempt: Attempt) -> None:
        if attempt.number not in self._teller.begun:
            self._run_dir.keep_reserve()
            since = None if self._teller.begun else self._recovery.queued_since()
            self._teller.attempt_begins(attempt)
            if since is not None:
                self._teller.journal.tell("queued", attempt.number, since=since)
            self._recovery.lemons.began(attempt)
            self._start_judging(attempt)

    def _start_judging(self, attempt: Attempt) -> None:
        self._eyes.begin(attempt)
        self._pace.begin()
        self._judge(AttemptBegan(at_s=self._clock.mono_s(), attempt=attempt.number, world_size=attempt.world_size()))

    def _watch(self, attempt: Attempt) -> None:
        activities = self._eyes.light()
        seen = {activity.rank for activity in activities}
        if any(place.rank not in seen for place in attempt.here()):
            self._teller.unseen(attempt, "the kernel hides ranks from this user (/proc is mounted with hidepid): nothing is told of them")
        elif len(seen) >= attempt.world_size():  # another node may have gone on to the next attempt already
            marked = (activity.phase for activity in activities if not activity.ended)
            self._teller.phase(attempt, marked, joined=all_joined(activities))
        self._teller.progress(attempt, self._eyes.best_step())
        # A job that was told to end is not judged: what stands still now only waits for its turn to go.
        if self._ordered() is None:
            if self.desk.open_incident() is None and (raised := look_at_raise(self._eyes)) is not None:
                self.desk.suspect(attempt.number, self._unix_s(raised[0]), raised[1])
            # In whole milliseconds, so that a recording can be small and exact.
            self._judge(Observed(at_s=round(self._clock.mono_s(), 3), ranks=activities))
            # Counters of different moments, some seconds apart, tell no step's time.
            seldom = any(activity.seen_at_s is not None for activity in activities)
            self._pace.round(attempt, odd=seldom or self._judge_state.looked_at_s is not None)
            self._asides.follow_losses(attempt.number, self._eyes.logs)

    def _judge(self, event: Event) -> None:
        self._judge_state, findings = step(self._judge_state, event, self._policy)
        self._recorder.heard(event, findings)
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
                diagnosis = look_closely(self._eyes)
                if (why := forbidden(self._eyes.looks[-1])) is not None:
                    self._teller.unseen(attempt, f"{why}; what is told of ranks without stacks is suspected at most")
                self._judge(Looked(at_s=self._clock.mono_s(), diagnosis=diagnosis))
            case Suspected():
                self.desk.suspect(attempt.number, self._unix_s(finding.onset_s), finding.diagnosis, quiet=finding.quiet)
            case TimeoutNears():
                self.desk.timeout_nears(finding.fires_in_s, finding.timeout_s)
            case Judged():
                alerted = self.desk.open_incident()
                found = finding.diagnosis if alerted is None else still_there(alerted.diagnosis, finding.diagnosis)
                self.desk.judged(self._unix_s(finding.onset_s), found, self._eyes.best_step(), self._teller.phase_now)
            case Resumed():
                self._eyes.calm()
                self.desk.progress_returned()

    def _crash(self, attempt: Attempt) -> None:
        """Name who ended first, and seal, before the launcher hears of it. After an alert it is told what that has to do with it."""
        alerted = self.desk.open_incident()
        if alerted is not None and alerted.stage is not Stage.ALERTED:
            return
        self._begin_attempt(attempt)
        self._eyes.light()
        found = look_at_crash(self._roster, self._eyes, self._clock, self._spec.checkpoints)
        if found is not None:
            self._recorder.note(crash_found(self._eyes, self._clock, found))
        if found is not None and alerted is not None:
            self.desk.judged(alerted.onset_unix_s, aftermath(alerted.diagnosis, found), self._eyes.best_step(), self._teller.phase_now)
        elif found is not None:
            exits = self._eyes.attempt.exits if self._eyes.attempt else attempt.exits
            onset_unix_s = min(seen.ended_unix_s for seen in exits.values())
            self.desk.suspect(attempt.number, onset_unix_s, found)
            self.desk.judged(onset_unix_s, found, self._eyes.best_step(), self._teller.phase_now)

    def _release(self, attempt: Attempt) -> None:
        """Cut off, nobody is let go: the first node may be about to look, and a shim does not hold its rank's exit for long."""
        if self._others.cut_off():
            self._seen_alone.add(attempt.number)
            return
        self._run_dir.write_first(f"released.{attempt.number}.json", Released(at_unix_s=self._clock.unix_s()))
        self._others.release(attempt.group)

    def _is_released(self, attempt: Attempt) -> bool:
        return attempt.number in self._seen_alone or self._run_dir.read(f"released.{attempt.number}.json", Released) is not None

    def _end_attempt(self, attempt: Attempt) -> None:
        self._teller.ended.add(attempt.number)
        if attempt.number not in self._teller.begun:
            return
        ordered = self._ordered() is not None
        self._teller.progress(attempt, self._eyes.best_step())
        self._teller.attempt_ends(attempt, ordered=ordered)
        by_us = any(seen.by_request for seen in attempt.exits.values())
        self._recorder.note(AttemptOver(at_s=self._clock.mono_s(), attempt=attempt.number, ordered=ordered, by_us=by_us))
        self.desk.attempt_ended(ordered=ordered)
        self._orphans.attempt_over(attempt)
        self._asides.close("ended")

    def _end_job(self, exit_code: int | None) -> None:
        self._orphans.settle(ORPHANS_S)
        ordered = self._ordered()
        stopped = self.desk.state is not None and self.desk.state.diagnosis.verdict in FINAL_VERDICTS
        well = exit_code == 0 or (exit_code is None and self._eyes.attempt is not None and self._eyes.attempt.ended_well())
        reason = f"ordered by {ordered.signal}" if ordered else "finished" if well else "stopped" if stopped else "failed"
        reason = "ended" if self._spec.attached and exit_code is None else reason  # nobody whose child it was has told us how
        self._recorder.flush()
        self._teller.job_ends(self._eyes.attempt.number if self._eyes.attempt else 0, exit_code, reason)
        content = self._write_state(ended=reason)
        self._metrics.farewell()
        hand_over(self._spec, self._run_dir, self._teller, self._clock, content)
        self._teller.farewell(exit_code, reason)

    def _state(self, ended: str | None = None) -> bytes:
        attempt = self._eyes.attempt
        runs = attempt is not None and attempt.number not in self._teller.ended
        view = JobView(self._spec, self._eyes, self._judge_state, self.desk.state, self._recovery.checkpoints.latest(), ended)
        view = view._replace(
            pause=self._recovery.pause_known(),
            question=self._question(),
            asides=self._asides.open(),
            nodes=self._others.lines(),
            run_dir_full=self._teller.run_dir_full,
            bindings={} if attempt is None else self._run_dir.bindings(attempt.number),
            phase=self._teller.phase_now if runs else None,
            agent=agent_now(self._spec, self._teller),
        )
        return state_of(view, self._clock)

    def _write_state(self, ended: str | None = None) -> bytes:
        content = self._state(ended)
        self._metrics.publish(content)
        self._state_due_at_s = self._clock.mono_s() + min(_STATE_MOST_S, max(0, self.ranks() - _STATE_RANKS) / _STATE_RANKS_A_SECOND)
        self._teller.courier.send(lambda: write_atomic(Path(self._spec.job_dir) / "state.json", content), instead_of="state.json")
        return content

    def _question(self) -> str | None:
        """The command that answers the open question."""
        open_incident = self.desk.open_incident()
        if open_incident is None or open_incident.waits_for is not WaitsFor.ANSWER:
            return None
        return self._recovery.answer_command(open_incident.incident)

    def _ordered(self) -> OrderedEnd | None:
        group = self._eyes.attempt.group if self._eyes.attempt else None
        return self._run_dir.read("ending.json", OrderedEnd) or self._others.ordered(group)

    def _unix_s(self, mono_s: float) -> float:
        return self._clock.unix_s() - (self._clock.mono_s() - mono_s)
