"""What happens to an incident, what it is told to do, and what it remembers."""

from enum import StrEnum

from rankpatrol.core.budget import Budget
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Record

# After these the job is ended for good: another attempt would not help.
FINAL_VERDICTS = frozenset({"stop", "zombie_job"})


class WaitsFor(StrEnum):
    """What a sealed incident may wait for before it is acted upon: the end of a pause, or a person's answer."""

    UNPAUSE = "unpause"
    ANSWER = "answer"


class Stage(StrEnum):
    """Where an incident is in its life. SUSPECTED lasts only while its alert is being raised."""

    ALERTED = "alerted"
    JUDGED = "judged"
    SEALED = "sealed"
    ACTED = "acted"
    CLOSED = "closed"


class SuspectNamed(Record, frozen=True, tag="suspect_named", kw_only=True):
    """The judge names a suspect: an incident begins. `quiet`: people have heard of this phase already, and will only of a verdict."""

    incident: int
    attempt: int
    onset_unix_s: float
    diagnosis: Diagnosis
    quiet: bool = False


class VerdictGiven(Record, frozen=True, tag="verdict_given", kw_only=True):
    """The judge's patience is over. `step` and `phase` are how far the attempt had come.

    `found` is what was diagnosed where the brake made another verdict of it. `last`: the launcher starts the ranks no more, but the job's
    scheduler may start the whole job again.
    """

    onset_unix_s: float
    diagnosis: Diagnosis
    step: int | None = None
    phase: str | None = None
    found: Diagnosis | None = None
    last: bool = False


class TimeoutNears(Record, frozen=True, tag="timeout_nears", kw_only=True):
    """A process group's own time-out will end the attempt soon, whatever we think of it: the evidence is sealed before."""

    fires_in_s: float


class BundleSealed(Record, frozen=True, tag="bundle_sealed", kw_only=True):
    """The evidence is sealed at this path."""

    path: str


class SealFailed(Record, frozen=True, tag="seal_failed", kw_only=True):
    """The evidence could not be sealed."""

    why: str


class ActionEnded(Record, frozen=True, tag="action_ended", kw_only=True):
    """The plan was carried out, or was not, and why. `requeued`: the job's scheduler has taken it, and starts the whole job again."""

    done: bool
    why: str = ""
    requeued: bool = False


class ActionHeld(Record, frozen=True, tag="action_held", kw_only=True):
    """Actions were paused when it came to one: by whom, and since when."""

    by: str
    since_unix_s: float


class Unpaused(Record, frozen=True, tag="unpaused"):
    """The pause is over."""


class AnsweredYes(Record, frozen=True, tag="answered_yes", kw_only=True):
    """A person has said that the action may be taken."""

    by: str


class LookedAgain(Record, frozen=True, tag="looked_again", kw_only=True):
    """What a look says that was taken now, since an action that had to wait may be taken."""

    diagnosis: Diagnosis


class ProgressReturned(Record, frozen=True, tag="progress_returned", kw_only=True):
    """Every rank stirs again."""


class AttemptEnded(Record, frozen=True, tag="attempt_ended", kw_only=True):
    """The attempt is over. `ordered`: a user or a scheduler asked for it."""

    ordered: bool


IncidentEvent = (
    SuspectNamed
    | TimeoutNears
    | VerdictGiven
    | BundleSealed
    | SealFailed
    | ActionEnded
    | ActionHeld
    | Unpaused
    | AnsweredYes
    | LookedAgain
    | ProgressReturned
    | AttemptEnded
)


class RaiseAlert(Record, frozen=True, tag="raise_alert", kw_only=True):
    """Put the evidence of this moment aside, and (unless `quiet`) tell people of the suspect."""

    quiet: bool = False


class GiveVerdict(Record, frozen=True, tag="give_verdict"):
    """Tell people the verdict."""


class SealEvidence(Record, frozen=True, tag="seal_evidence", kw_only=True):
    """Seal the bundle: from a fresh capture, or (the ranks being gone or well again) from what was put aside at the alert."""

    fresh: bool


class CarryOut(Record, frozen=True, tag="carry_out", kw_only=True):
    """Plan and execute the recovery, with the sealed bundle as its proof."""

    bundle: str


class AskPerson(Record, frozen=True, tag="ask_person"):
    """Put the question to a person; nothing is done until it is answered."""


class LookAgain(Record, frozen=True, tag="look_again"):
    """The action may be taken now, but its evidence is old: look whether the diagnosis still holds."""


class SayChanged(Record, frozen=True, tag="say_changed", kw_only=True):
    """Tell people that nothing was done, since this is what the fresh look shows."""

    now: Diagnosis


class Close(Record, frozen=True, tag="close", kw_only=True):
    """The incident is over: recovered, ended, requeued or dismissed (CONTRACT)."""

    how: str


Instruction = RaiseAlert | GiveVerdict | SealEvidence | CarryOut | AskPerson | LookAgain | SayChanged | Close


class IncidentPolicy(Record, frozen=True, kw_only=True):
    """Whether a sealed verdict is acted upon, whether a person is asked before, and how often the job may fail."""

    act: bool
    ask: bool = False
    budget: Budget = Budget()


class IncidentState(Record, frozen=True, kw_only=True):
    """One incident. `closing` waits for the seal of evidence that was put aside; a `bundle` while ALERTED was sealed before a time-out.

    `again` counts how often evidence was taken anew for an action that had to wait; `answered`: a person has said yes to this one.
    `last`: nothing starts this attempt's ranks again but the scheduler of the whole job.
    """

    incident: int
    attempt: int
    stage: Stage
    onset_unix_s: float
    diagnosis: Diagnosis
    quiet: bool = False
    bundle: str | None = None
    closing: str | None = None
    seals_failed: int = 0
    waits_for: WaitsFor | None = None
    answered: bool = False
    again: int = 0
    last: bool = False

    def would_do(self) -> str:
        """The action that its diagnosis asks for, in a person's words."""
        if self.diagnosis.verdict in FINAL_VERDICTS:
            return "end the job"
        if self.last:
            return f"end attempt {self.attempt}, the last one, and have the whole job queued again where another node may help"
        return f"end attempt {self.attempt} and start the next one"

    def bundle_name(self) -> str:
        """The name of the bundle to seal now: the incident's number, unless a bundle of it was sealed before.

        That was so before a group's own time-out (`-at-verdict`), and where an action had to wait (`.2`, `.3` …).
        """
        if self.again:
            return f"{self.incident}.{self.again + 1}"
        early = self.bundle is not None and self.stage is not Stage.ALERTED
        return f"{self.incident}-at-verdict" if early else str(self.incident)
