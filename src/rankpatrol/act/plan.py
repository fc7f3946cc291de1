"""What will be done, as data. Pure: `--dry-run` prints the very object that would be executed."""

from rankpatrol.core.records import Record


class ResumeFrom(Record, frozen=True, tag="resume_from", kw_only=True):
    """Fix where the next attempt starts; "" lets it start as the user's script decides."""

    attempt: int
    checkpoint: str
    step: int | None


class EndAttempt(Record, frozen=True, tag="end_attempt", kw_only=True):
    """End every rank of this attempt through the job's scheduler, which starts the next one."""

    attempt: int
    grace_s: float


class EndJob(Record, frozen=True, tag="end_job", kw_only=True):
    """Tell the launcher to end the job in order: no further attempt."""

    job: str


Step = ResumeFrom | EndAttempt | EndJob


class ActionPlan(Record, frozen=True, kw_only=True):
    """The steps in order, for one incident. It can be stopped after any of them: before the end of the attempt nothing is lost."""

    job: str
    attempt: int
    incident: int
    steps: tuple[Step, ...]


class Verified(Record, frozen=True, kw_only=True):
    """A checkpoint that was read and found whole."""

    path: str
    step: int | None


# A rank that waits in a collective never reaches its Python handler of SIGTERM: more grace than this only prolongs the outage.
GRACE_S = 5.0


def plan(*, job: str, attempt: int, incident: int, checkpoint: Verified | None) -> ActionPlan:
    """End this attempt and let the next one resume from `checkpoint`, fixed before anything is ended."""
    resume = ResumeFrom(attempt=attempt + 1, checkpoint=checkpoint.path if checkpoint else "", step=checkpoint.step if checkpoint else None)
    return ActionPlan(job=job, attempt=attempt, incident=incident, steps=(resume, EndAttempt(attempt=attempt, grace_s=GRACE_S)))


def stop(*, job: str, attempt: int, incident: int) -> ActionPlan:
    """End the job for good: another attempt would only fail again."""
    return ActionPlan(job=job, attempt=attempt, incident=incident, steps=(EndJob(job=job),))
