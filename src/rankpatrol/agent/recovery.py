"""The agent's hands (desk.Hands): puts evidence aside, seals it, and carries out the recovery that a sealed bundle allows."""

import shlex
from pathlib import Path

from rankpatrol.act.execute import StepReport, Tell, execute
from rankpatrol.act.job_steps import RequeueJob, in_words
from rankpatrol.act.plan import ActionPlan, Outlook, next_start, plan, stop
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.inside_slurm import InsideSlurm
from rankpatrol.agent.leases import leased, local_lease
from rankpatrol.agent.lemon_watch import LemonWatch
from rankpatrol.agent.looking import look_closely
from rankpatrol.agent.nodes.joined import JoinedScheduler
from rankpatrol.agent.roster import Roster
from rankpatrol.agent.sealing import Sealer
from rankpatrol.agent.setting_aside import SettingAside
from rankpatrol.agent.switches import Switches
from rankpatrol.agent.teller import Teller
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.jobs import JobStatus
from rankpatrol.evidence.bundle import SealedBundle, reopen
from rankpatrol.evidence.host import within
from rankpatrol.evidence.shelf import shelve
from rankpatrol.incident.records import FINAL_VERDICTS, IncidentState
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import JobSpec, OrderedEnd, RunDir
from rankpatrol.lemons.memory import lemon_path
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic
from rankpatrol.system.lease import LeaseTaken, standing

# How long a new attempt may wait for the checkpoint check; its shims wait a little longer (RESUME_WAIT_S) before they go on alone.
CHECK_S = 15.0
# A bundle is a few MB: a job directory that has not taken it by then does not answer, and nobody waits for it.
CARRY_S = 5.0
# The user's state directory may be on a network: what was last read of it stands where it does not answer by then.
SWITCH_S = 2.0
_BETWEEN_LOOKS_S = 1.0
_LEDGER = "checkpoints.json"
# A few renames; a file system that does not answer is left alone.
ASIDE_S = 5.0
_SLURM_S = 3.0


_PART = "A part of a job is never ended. `rankpatrol status` says which nodes are heard; mend the network, or end the job by hand."


class NotRecovered(PatrolError):
    """A step of the recovery was not done."""

    help = "events.jsonl says which step and why. A rank in D state cannot be ended by anybody: the machine or its storage must be mended."


class Recovery:
    """What can be done about the incidents of one job."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, eyes: Eyes, clock: Clock, teller: Teller) -> None:
        self._spec, self._run_dir, self._eyes, self._clock, self._teller = spec, run_dir, eyes, clock, teller
        self.courier: Courier = teller.courier
        self.scheduler = JoinedScheduler(run_dir, eyes.others)
        self._roster = Roster(run_dir, eyes.others)
        self.switches = Switches(run_dir)
        self._slurm = InsideSlurm.here(spec, run_dir, clock)
        self.checkpoints = CheckpointWatch(spec.checkpoints, run_dir.path / _LEDGER, self._carry_ledger)
        self._sealer = Sealer(spec, run_dir, clock, eyes.others)
        self._aside = SettingAside(spec, teller.journal, self.announce, clock.unix_s)
        # What a node that is cut off makes of its own ranks is no ground for other jobs to leave a node out.
        self.lemons = LemonWatch(spec, None if eyes.others.cut_off() else lemon_path(), lambda problem: self.announce(problem, "plain"))

    def set_bad_checkpoints_aside(self, attempt: int) -> None:
        """Before the ranks of a new attempt choose: the last attempt is over, so nobody writes to them any more."""
        if self._aside.wanted:
            found = self.checkpoints.now(CHECK_S)
            within({"aside": lambda: self._aside.put(attempt, found, unchanged_for_s=0.0)}, ASIDE_S)

    def _carry_ledger(self) -> None:
        """The ledger of checkpoints is kept on the local disk, and a copy beside the journal, for those who look after the job."""
        local, beside = self._run_dir.path / _LEDGER, Path(self._spec.job_dir) / _LEDGER
        self.courier.send(lambda: write_atomic(beside, local.read_bytes()), instead_of=_LEDGER)

    def put_aside(self) -> None:
        """Keep the looks at hand for a later seal."""
        self._sealer.put_aside(tuple(self._eyes.looks))

    def seal(self, state: IncidentState, *, fresh: bool, spare: bool) -> Path:
        """Look once more where the ranks are still there, seal on the local disk, and have the bundle carried to the job directory."""
        if fresh and self._eyes.attempt is not None:
            self._eyes.look_whole()
        context = {"scheduler": self._describe(), "checkpoints": self.checkpoints.latest()}
        root = Path(self._spec.job_dir) if spare else self._run_dir.spool
        sealed = self._sealer.seal(root, state, tuple(self._eyes.looks) if fresh else (), context)
        return sealed if spare else self._carry(sealed)

    def recover(self, state: IncidentState, bundle: str, outlook: Outlook) -> bool:
        """End the attempt through the scheduler, from a checkpoint that was verified; True where the whole job was queued again."""
        group = self._run_dir.group_of(state.attempt)
        if (ordered := self._run_dir.read("ending.json", OrderedEnd) or self._eyes.others.ordered(group)) is not None:
            raise NotRecovered(f"the job was told to end by {ordered.signal}: it ends by itself", help="A job that was ended stays ended.")
        if self._spec.cluster is not None and (why := self._a_part(state.attempt)):
            raise NotRecovered(why, help=_PART)
        self._check_nobody_acts()
        local = self._run_dir.spool / "incidents" / Path(bundle).name
        proof = reopen(local if local.exists() else Path(bundle))

        def tell(report: StepReport) -> None:
            self._teller.step(state, report)

        with leased(local_lease(self._run_dir), "the job's own agent", self._clock, self._run_dir.open_reserve):
            if self._requeued(state, outlook, proof, tell):
                return True
            if state.diagnosis.not_to_be_ended:
                return False  # it ends by itself, as it would without us
            if not execute(self._plan(state, outlook), proof, self.scheduler, self._clock, tell):
                raise NotRecovered(f"attempt {state.attempt} could not be ended")
        return False

    def _check_nobody_acts(self) -> None:
        """Whoever acts on our Slurm job from another node sees none of our own lease. Where homes do not answer, nobody is asked."""
        if self._slurm is not None:
            folder = self._slurm.lease_folder
            held = within({"lease": lambda: standing(folder, self._clock)}, SWITCH_S)["lease"]
            if isinstance(held, str) and held:
                raise NotRecovered(held, help="Nothing was done: whoever holds the lease of the Slurm job ends it, or gives it back.")

    def _a_part(self, number: int) -> str:
        """Why this node would end a part of the job only. Whoever hears half of the nodes or less may be the one that is cut off."""
        attempt = self._roster.read(number)
        if not attempt.complete():
            return f"not all ranks of attempt {number} are known: other nodes cannot be heard"
        silent, nodes = self._eyes.others.silent(attempt.group), {place.node for place in attempt.places}
        if silent and 2 * len(silent) >= len(nodes):
            return f"only {len(nodes) - len(silent)} of {len(nodes)} nodes are heard: this one may be the one that is cut off"
        return ""

    def _requeued(self, state: IncidentState, outlook: Outlook, proof: SealedBundle, tell: Tell) -> bool:
        """Restarts in place come first. Where those have ended, another node may do: True where Slurm has queued the job again."""
        if self._slurm is None or not (state.diagnosis.verdict in FINAL_VERDICTS or state.last):
            return False
        wanted = self._slurm.plan(state, self._roster.read(state.attempt), outlook.failed_of)
        if isinstance(wanted, str):
            self.announce(f"Slurm job {self._slurm.job} is not requeued: {wanted}", "plain")
            return False
        try:
            with leased(self._slurm.lease_folder, "the job's own agent", self._clock) as lease:
                self.announce(f"requeueing Slurm job {_without(wanted)}", "verdict")
                return execute(wanted, proof, self._slurm.hands(lease, self.checkpoints), self._clock, tell)
        except LeaseTaken as problem:
            self._check_nobody_acts()
            self.announce(f"Slurm job {self._slurm.job} is not requeued: {problem}", "plain")
            return False

    def is_last(self, attempt: int) -> bool:
        """True in a Slurm job where a node's torchrun will not start its ranks again: all launchers end with this attempt."""
        most = self._spec.restarts_in_place
        if self._slurm is None or most is None:
            return False
        return any(place.torchrun_restarts >= most for place in self._roster.read(attempt).places)

    def queued_since(self) -> float | None:
        """Since when our Slurm job had waited for this start; None where we are in none, or Slurm does not answer in time."""
        if self._slurm is None:
            return None
        seen = within({"slurm": self._slurm.describe}, _SLURM_S)["slurm"]
        return seen.queued_unix_s if isinstance(seen, JobStatus) else None

    def was_queued_again(self) -> bool:
        """True where an earlier run of this job may have left checkpoints, or a person says so.

        Whoever submits a job from a job hands it all variables: where Slurm answers in time, its own count is believed.
        """
        if not self._spec.resumes or self._spec.resume_asked or self._slurm is None:
            return self._spec.resumes
        seen = within({"slurm": self._slurm.describe}, _SLURM_S)["slurm"]
        return not (isinstance(seen, JobStatus) and seen.restarts == 0)

    def _describe(self) -> dict[str, object]:
        """With Slurm's own word where we are a part of its job, and it answers in time."""
        slurm = {} if self._slurm is None else within(self._slurm.facts(), _SLURM_S)
        return {**self.scheduler.describe(), **slurm}

    def look_again(self) -> Diagnosis:
        """What the ranks show now; an agent that has seen them only once looks twice, since one look shows no standstill."""
        if not self._eyes.looks:
            look_closely(self._eyes)
            self._clock.sleep(_BETWEEN_LOOKS_S)
        return look_closely(self._eyes)

    def paused(self) -> Pause | None:
        """The pause that stands at this moment."""
        return self.switches.now(SWITCH_S) or self._paused_elsewhere()

    def pause_known(self) -> Pause | None:
        """The same as it is known, without waiting."""
        return self.switches.latest() or self._paused_elsewhere()

    def _paused_elsewhere(self) -> Pause | None:
        attempt = self._eyes.attempt
        return self._eyes.others.paused(None if attempt is None else attempt.group)

    def answer_command(self, incident: int) -> str:
        """What a person types to say yes."""
        return f"rankpatrol act {shlex.quote(self._spec.job_dir)} {incident} --yes"

    def remember(self, state: IncidentState) -> None:
        """Keep the culprits' nodes for other jobs."""
        self.lemons.judged(state, self._eyes.attempt)

    def announce(self, what: str, style: str) -> None:
        """Tell the user."""
        self._teller.voice.say(what, style)

    def _carry(self, sealed: Path) -> Path:
        """Where people find the bundle: in the job directory, or here while that does not answer."""
        final = Path(self._spec.job_dir) / "incidents" / sealed.name
        carried: list[bool] = []

        def carry() -> None:
            shelve(sealed, final)
            carried.append(True)

        self.courier.send(carry)
        self.courier.delivered(CARRY_S)
        return final if carried else sealed

    def _plan(self, state: IncidentState, outlook: Outlook) -> ActionPlan:
        if state.diagnosis.verdict in FINAL_VERDICTS:
            self.announce("ending the job: another attempt would only fail again", "verdict")
            return stop(job=self._spec.job, attempt=state.attempt, incident=state.incident)
        checkpoint = verified(self.checkpoints.now(CHECK_S)) if self._spec.checkpoints else None
        where = f"from {Path(checkpoint.path).name}" if checkpoint else "from the script's own choice"
        wait_s = (outlook.not_before_unix_s or 0.0) - self._clock.unix_s()
        pause = f" in {say_duration(wait_s)}, since the last ones failed one soon after the other" if wait_s > 0 else ""
        self.announce(f"ending attempt {state.attempt}; the next one resumes {where}{pause}", "verdict")
        start = next_start(state.attempt + 1, checkpoint, outlook)
        return plan(job=self._spec.job, incident=state.incident, start=start)


def _without(wanted: ActionPlan) -> str:
    """Which job is queued again, and without which nodes."""
    return next(in_words(step)[1] for step in wanted.steps if isinstance(step, RequeueJob))
