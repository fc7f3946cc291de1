"""The only function that ends a job. It demands the sealed evidence of this very incident, and tells each step before and after."""

from collections.abc import Callable

from rankpatrol.act.job_hands import JobHands
from rankpatrol.act.job_steps import in_words
from rankpatrol.act.plan import ActionPlan, AttemptStep, EndAttempt, EndJob, ResumeFrom, Step
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record
from rankpatrol.evidence.bundle import SealedBundle
from rankpatrol.schedulers.port import Scheduler
from rankpatrol.system.clock import Clock

# From the seal to the deed there are milliseconds; a minute covers an agent that was restarted in between.
FRESH_S = 60.0
_NOT_FOR = "this step is not for this scheduler"


class WrongBundle(PatrolError):
    """The bundle is not the fresh evidence of this incident, so nothing was done."""

    help = "Nothing was touched. The next judgement seals new evidence; `rankpatrol status` shows the incident."


class StepReport(Record, frozen=True, kw_only=True):
    """One step of a plan, before it is done (`done` None) and after, with what came of it."""

    what: str
    target: str
    bundle: str
    done: bool | None
    why: str = ""


Tell = Callable[[StepReport], None]


def execute(plan: ActionPlan, bundle: SealedBundle, scheduler: Scheduler | JobHands, clock: Clock, tell: Tell) -> bool:
    """Carry out the plan; stops at the first step that fails. Raises WrongBundle before anything is done."""
    _check(plan, bundle, clock)
    for step in plan.steps:
        tell(_report(step, bundle, done=None, why=""))
        done, why = _do(step, scheduler)
        tell(_report(step, bundle, done=done, why=why))
        if not done:
            return False
    return True


def _check(plan: ActionPlan, bundle: SealedBundle, clock: Clock) -> None:
    if (bundle.job, bundle.attempt, bundle.incident) != (plan.job, plan.attempt, plan.incident):
        raise WrongBundle(f"{bundle.path} is the evidence of attempt {bundle.attempt}, incident {bundle.incident}: not of this one")
    age_s = clock.mono_s() - bundle.sealed_mono_s
    if not 0 <= age_s <= FRESH_S:
        raise WrongBundle(f"{bundle.path} was sealed {age_s:.0f} s ago: it no longer shows the job as it is")


def _do(step: Step, scheduler: Scheduler | JobHands) -> tuple[bool, str]:
    """Steps of an attempt are for whoever runs attempts, steps of a job for whoever runs jobs."""
    if isinstance(step, AttemptStep):
        return (False, _NOT_FOR) if isinstance(scheduler, JobHands) else _do_attempt(step, scheduler)
    return scheduler.do(step) if isinstance(scheduler, JobHands) else (False, _NOT_FOR)


def _do_attempt(step: AttemptStep, scheduler: Scheduler) -> tuple[bool, str]:
    match step:
        case ResumeFrom():
            try:
                standing = scheduler.resume_from(step.start)
            except OSError as problem:
                return False, f"where to resume from could not be written down: {problem.strerror}"
            return True, standing
        case EndAttempt():
            report = scheduler.end_attempt(step.attempt, step.grace_s)
            return not report.failed, "; ".join(f"rank {rank}: {why}" for rank, why in {**report.failed, **report.beyond}.items())
        case EndJob():
            problem_words = scheduler.end_job()
            return not problem_words, problem_words


def _report(step: Step, bundle: SealedBundle, *, done: bool | None, why: str) -> StepReport:
    match step:
        case ResumeFrom():
            what, target = "resume_from", step.start.checkpoint or "the script's own choice"
        case EndAttempt():
            what, target = "end_attempt", f"attempt {step.attempt}"
        case EndJob():
            what, target = "end_job", step.job
        case _:
            what, target = in_words(step)
    return StepReport(what=what, target=target, bundle=bundle.path, done=done, why=why)
