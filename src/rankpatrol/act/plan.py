"""What will be done, as data. Pure: `--dry-run` prints the very object that would be executed."""

from rankpatrol.act.job_steps import JobStep
from rankpatrol.core.records import Record
from rankpatrol.core.starts import NextStart, SuspectFile


class ResumeFrom(Record, frozen=True, tag="resume_from"):
    """Fix where the next attempt starts (a checkpoint of "" lets the user's script decide), with what, and not before when."""

    start: NextStart


class EndAttempt(Record, frozen=True, tag="end_attempt", kw_only=True):
    """End every rank of this attempt through the job's scheduler, which starts the next one."""

    attempt: int
    grace_s: float


class EndJob(Record, frozen=True, tag="end_job", kw_only=True):
    """Tell the launcher to end the job in order: no further attempt."""

    job: str


AttemptStep = ResumeFrom | EndAttempt | EndJob
Step = AttemptStep | JobStep


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


class Outlook(Record, frozen=True, kw_only=True):
    """What the failures so far mean for the next attempt: data to beware of, not to start before when, and what the last one failed of."""

    suspect_files: tuple[SuspectFile, ...] = ()
    not_before_unix_s: float | None = None
    failed_of: str | None = None

    def says_something(self) -> bool:
        """False where the next attempt starts as any."""
        return bool(self.suspect_files) or self.not_before_unix_s is not None


def next_start(attempt: int, checkpoint: Verified | None, outlook: Outlook) -> NextStart:
    """How `attempt` will start."""
    return NextStart(
        attempt=attempt,
        checkpoint=checkpoint.path if checkpoint else "",
        step=checkpoint.step if checkpoint else None,
        suspect_files=outlook.suspect_files,
        not_before_unix_s=outlook.not_before_unix_s,
    )


def plan(*, job: str, incident: int, start: NextStart) -> ActionPlan:
    """End the attempt before `start`, which is fixed before anything is ended."""
    attempt = start.attempt - 1
    return ActionPlan(job=job, attempt=attempt, incident=incident, steps=(ResumeFrom(start), EndAttempt(attempt=attempt, grace_s=GRACE_S)))


def stop(*, job: str, attempt: int, incident: int) -> ActionPlan:
    """End the job for good: another attempt would only fail again."""
    return ActionPlan(job=job, attempt=attempt, incident=incident, steps=(EndJob(job=job),))
