"""The agent's hands (desk.Hands): puts evidence aside, seals it, and carries out the recovery that a sealed bundle allows."""

from pathlib import Path

from rankpatrol.act.execute import StepReport, execute
from rankpatrol.act.plan import ActionPlan, plan, stop
from rankpatrol.agent.checkpoint_watch import CheckpointWatch, verified
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.sealing import Sealer
from rankpatrol.agent.teller import Teller
from rankpatrol.core.errors import PatrolError
from rankpatrol.evidence.bundle import reopen
from rankpatrol.evidence.shelf import shelve
from rankpatrol.incident.records import IncidentState
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.schedulers.local import LocalScheduler
from rankpatrol.system.background import Courier
from rankpatrol.system.clock import Clock
from rankpatrol.system.files import write_atomic

# How long a new attempt may wait for the checkpoint check; its shims wait a little longer (RESUME_WAIT_S) before they go on alone.
CHECK_S = 15.0
# A bundle is a few MB: a job directory that has not taken it by then does not answer, and nobody waits for it.
CARRY_S = 5.0
_LEDGER = "checkpoints.json"


class NotRecovered(PatrolError):
    """A step of the recovery was not done."""

    help = "events.jsonl says which step and why. A rank in D state cannot be ended by anybody: the machine or its storage must be mended."


class Recovery:
    """What can be done about the incidents of one job."""

    def __init__(self, spec: JobSpec, run_dir: RunDir, eyes: Eyes, clock: Clock, teller: Teller) -> None:
        self._spec, self._run_dir, self._eyes, self._clock, self._teller = spec, run_dir, eyes, clock, teller
        self.courier: Courier = teller.courier
        self.scheduler = LocalScheduler(run_dir)
        self.checkpoints = CheckpointWatch(spec.checkpoints, run_dir.path / _LEDGER, self._carry_ledger)
        self._sealer = Sealer(spec, run_dir, clock)

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
        context = {"scheduler": self.scheduler.describe(), "checkpoints": self.checkpoints.latest()}
        root = Path(self._spec.job_dir) if spare else self._run_dir.spool
        sealed = self._sealer.seal(root, state, tuple(self._eyes.looks) if fresh else (), context)
        return sealed if spare else self._carry(sealed)

    def recover(self, state: IncidentState, bundle: str) -> None:
        """End the attempt through the scheduler, from a checkpoint that was verified. Raises PatrolError."""
        local = self._run_dir.spool / "incidents" / str(state.incident)
        proof = reopen(local if local.exists() else Path(bundle))

        def tell(report: StepReport) -> None:
            self._teller.step(state, report)

        if not execute(self._plan(state), proof, self.scheduler, self._clock, tell):
            raise NotRecovered(f"attempt {state.attempt} could not be ended")

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
        return final if self.courier.delivered(CARRY_S) and carried else sealed

    def _plan(self, state: IncidentState) -> ActionPlan:
        if state.diagnosis.verdict == "stop":
            self.announce("ending the job: another attempt would only fail again", "verdict")
            return stop(job=self._spec.job, attempt=state.attempt, incident=state.incident)
        checkpoint = verified(self.checkpoints.now(CHECK_S)) if self._spec.checkpoints else None
        where = f"from {Path(checkpoint.path).name}" if checkpoint else "from the script's own choice"
        self.announce(f"ending attempt {state.attempt}; the next one resumes {where}", "verdict")
        return plan(job=self._spec.job, attempt=state.attempt, incident=state.incident, checkpoint=checkpoint)
