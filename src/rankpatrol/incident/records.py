"""What happens to an incident, what it is told to do, and what it remembers."""

from enum import StrEnum

from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.records import Record

# After these the job is ended for good: another attempt would not help.
FINAL_VERDICTS = frozenset({"stop", "zombie_job"})


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

    `found` is what was diagnosed where the brake made another verdict of it.
    """

    onset_unix_s: float
    diagnosis: Diagnosis
    step: int | None = None
    phase: str | None = None
    found: Diagnosis | None = None


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
    """The plan was carried out, or was not, and why."""

    done: bool
    why: str = ""


class ProgressReturned(Record, frozen=True, tag="progress_returned", kw_only=True):
    """Every rank stirs again."""


class AttemptEnded(Record, frozen=True, tag="attempt_ended", kw_only=True):
    """The attempt is over. `ordered`: a user or a scheduler asked for it."""

    ordered: bool


IncidentEvent = SuspectNamed | TimeoutNears | VerdictGiven | BundleSealed | SealFailed | ActionEnded | ProgressReturned | AttemptEnded


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


class Close(Record, frozen=True, tag="close", kw_only=True):
    """The incident is over: recovered, ended, requeued or dismissed (CONTRACT)."""

    how: str


Instruction = RaiseAlert | GiveVerdict | SealEvidence | CarryOut | Close


class IncidentPolicy(Record, frozen=True, kw_only=True):
    """Whether a sealed verdict is acted upon."""

    act: bool


class IncidentState(Record, frozen=True, kw_only=True):
    """One incident. `closing` waits for the seal of evidence that was put aside; a `bundle` while ALERTED was sealed before a time-out."""

    incident: int
    attempt: int
    stage: Stage
    onset_unix_s: float
    diagnosis: Diagnosis
    quiet: bool = False
    bundle: str | None = None
    closing: str | None = None
    seals_failed: int = 0
