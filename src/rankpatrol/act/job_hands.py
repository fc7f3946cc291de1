"""Carries out the steps of a plan that speak to a scheduler by job id; only `execute` calls it, with the sealed evidence in hand."""

from collections.abc import Callable

from rankpatrol.act.job_steps import AvoidNodes, ConfirmCheckpoint, ConfirmJob, JobStep, ReleaseJob, RequeueJob, TerminateJob
from rankpatrol.act.plan import Verified
from rankpatrol.core.records import Missing, Record
from rankpatrol.schedulers.port import JobScheduler, changed


class JobHands(Record, frozen=True, kw_only=True):
    """A scheduler, whoever reads checkpoints (by directory), and whoever says why we may not act any more (nothing where we may)."""

    scheduler: JobScheduler
    checkpoint: Callable[[str], Verified | Missing]
    why_not: Callable[[], str]

    def do(self, step: JobStep) -> tuple[bool, str]:
        """One step; whether it was done, and why not or what stands."""
        if refused := self.why_not():
            return False, refused
        match step:
            case ConfirmJob(seen):
                return _done(changed(seen, self.scheduler.describe(seen.job)))
            case ConfirmCheckpoint():
                return self._confirm_checkpoint(step)
            case TerminateJob(seen):
                return _done(self.scheduler.terminate(seen))
            case RequeueJob():
                return _done(self.scheduler.requeue(step.seen, held=step.held, without=step.without))
            case AvoidNodes():
                return _done(self.scheduler.avoid(step.job, step.nodes, "drain" if step.drain else "exclude"))
            case ReleaseJob(job):
                return _done(self.scheduler.release(job))

    def _confirm_checkpoint(self, step: ConfirmCheckpoint) -> tuple[bool, str]:
        found = self.checkpoint(step.directory)
        if isinstance(found, Missing):
            stays = "; the job stays held until somebody releases it" if step.held else "; the job was not touched"
            return False, f"{found.reason}{stays}"
        return True, found.path


def _done(problem: str) -> tuple[bool, str]:
    return not problem, problem
