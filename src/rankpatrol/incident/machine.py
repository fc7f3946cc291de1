"""The life of one incident as a pure function: an event comes in, the next state and instructions go out.

    suspect named → ALERTED → verdict → JUDGED → bundle sealed → SEALED → action ended → ACTED → attempt ended → CLOSED
                       ├ a group's own time-out nears → sealed at once, and still ALERTED
                       └ progress returned, or attempt ended → what was put aside is sealed → CLOSED

A sealed incident waits where actions are paused, or where the policy is to ask. When the pause is over or the answer is yes, the ranks
are looked at again: where the diagnosis still holds, it is JUDGED anew and sealed anew, else nothing is done and it is CLOSED. One that
ended in a requeue is CLOSED as soon as the scheduler has taken the order.

It can be stopped after any step: the recorded events, replayed, give the same state and the instruction that is still open.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.incident.records import (
    FINAL_VERDICTS,
    ActionEnded,
    ActionHeld,
    AnsweredYes,
    AskPerson,
    AttemptEnded,
    BundleSealed,
    CarryOut,
    Close,
    GiveVerdict,
    IncidentEvent,
    IncidentPolicy,
    IncidentState,
    Instruction,
    LookAgain,
    LookedAgain,
    ProgressReturned,
    RaiseAlert,
    SayChanged,
    SealEvidence,
    SealFailed,
    Stage,
    SuspectNamed,
    TimeoutNears,
    Unpaused,
    VerdictGiven,
    WaitsFor,
)

# The job directory, then the run directory: whoever cannot seal in either does not act.
SEAL_TRIES = 2
Outcome = tuple[IncidentState | None, tuple[Instruction, ...]]


def step(state: IncidentState | None, event: IncidentEvent, policy: IncidentPolicy) -> Outcome:
    """The next state, and what is to be done now. An event that means nothing at this stage changes nothing."""
    match event:
        case SuspectNamed():
            return _begin(state, event)
        case _ if state is None or state.stage is Stage.CLOSED:
            return state, ()
        case TimeoutNears():
            return _seal_early(state)
        case VerdictGiven():
            return _judge(state, event)
        case BundleSealed() | SealFailed():
            return _sealed(state, event, policy) if isinstance(event, BundleSealed) else _seal_failed(state)
        case ActionEnded():
            return _acted(state, event)
        case ActionHeld() | Unpaused() | AnsweredYes() | LookedAgain():
            return _wait(state, event)
        case ProgressReturned():
            return _over(state, "recovered") if state.stage is not Stage.ACTED else (state, ())
        case AttemptEnded():
            # Whoever ends a job that was only suspected has not said that it hung; after a verdict nobody doubts it.
            return _over(state, "dismissed" if event.ordered and state.stage is Stage.ALERTED else "ended")


def replay(events: Iterable[IncidentEvent], policy: IncidentPolicy) -> Outcome:
    """The state after recorded events, and the instructions of the last one: what a restarted agent has to do (again)."""
    state: IncidentState | None = None
    pending: tuple[Instruction, ...] = ()
    for event in events:
        state, pending = step(state, event, policy)
    return state, pending


def may_act(state: IncidentState, policy: IncidentPolicy) -> bool:
    """Only what is proved or supported not to end by itself, where an end would help, and only where the policy says so."""
    return policy.act and (_can_be_acted_upon(state.diagnosis) or (not policy.ask and _leaves_nothing(state)))


def _leaves_nothing(state: IncidentState) -> bool:
    """A crash ends its attempt by itself, and waits for no answer; with the last one the whole job goes, which may start elsewhere."""
    return state.last and state.diagnosis.verdict == "crash" and state.diagnosis.certainty is not Certainty.SUSPECTED


def still_holds(before: Diagnosis, now: Diagnosis) -> bool:
    """True where a fresh look names the same ranks for the same cause. A `stop` tells of the cause of the last of its attempts."""
    if not _can_be_acted_upon(now) or before.culprit_ranks != now.culprit_ranks:
        return False
    return before.verdict in FINAL_VERDICTS or (before.verdict, before.cause) == (now.verdict, now.cause)


def _can_be_acted_upon(found: Diagnosis) -> bool:
    return (
        found.verdict in {"hang", "crash", *FINAL_VERDICTS} and found.certainty is not Certainty.SUSPECTED and found.not_to_be_ended is None
    )


def _begin(state: IncidentState | None, event: SuspectNamed) -> Outcome:
    if state is not None and state.stage is not Stage.CLOSED:
        return state, ()
    begun = IncidentState(
        incident=event.incident,
        attempt=event.attempt,
        stage=Stage.ALERTED,
        onset_unix_s=event.onset_unix_s,
        diagnosis=event.diagnosis,
        quiet=event.quiet,
    )
    return begun, (RaiseAlert(quiet=event.quiet),)


def _seal_early(state: IncidentState) -> Outcome:
    """People hear of it even where this phase had its alert: soon there will be nobody left to look at."""
    if state.stage is not Stage.ALERTED or state.closing or state.bundle:
        return state, ()
    alert = (RaiseAlert(),) if state.quiet else ()
    return replace(state, quiet=False), (*alert, SealEvidence(fresh=True))


def _judge(state: IncidentState, event: VerdictGiven) -> Outcome:
    if state.stage is not Stage.ALERTED or state.closing:
        return state, ()
    judged = replace(state, stage=Stage.JUDGED, diagnosis=event.diagnosis, onset_unix_s=event.onset_unix_s, last=event.last)
    return judged, (GiveVerdict(), SealEvidence(fresh=True))


def _sealed(state: IncidentState, event: BundleSealed, policy: IncidentPolicy) -> Outcome:
    if state.closing:
        return replace(state, stage=Stage.CLOSED, bundle=event.path), (Close(how=state.closing),)
    if state.stage is Stage.ALERTED:
        return replace(state, bundle=event.path), ()
    if state.stage is not Stage.JUDGED:
        return state, ()
    sealed = replace(state, stage=Stage.SEALED, bundle=event.path)
    if not may_act(sealed, policy):
        return sealed, ()
    if policy.ask and not sealed.answered:
        return replace(sealed, waits_for=WaitsFor.ANSWER), (AskPerson(),)
    return sealed, (CarryOut(bundle=event.path),)


def _wait(state: IncidentState, event: ActionHeld | Unpaused | AnsweredYes | LookedAgain) -> Outcome:
    """An action that waits. A yes is good for the evidence it was given on: after a pause a person is asked again."""
    if state.stage is not Stage.SEALED:
        return state, ()
    match event, state.waits_for:
        case ActionHeld(), None:
            return replace(state, waits_for=WaitsFor.UNPAUSE, answered=False), ()
        case Unpaused(), WaitsFor.UNPAUSE:
            return state, (LookAgain(),)
        case AnsweredYes(), WaitsFor.ANSWER:
            return replace(state, answered=True), (LookAgain(),)
        case LookedAgain(), WaitsFor() as waited if waited is WaitsFor.UNPAUSE or state.answered:
            return _looked_again(state, event)
        case _:
            return state, ()


def _looked_again(state: IncidentState, event: LookedAgain) -> Outcome:
    if not still_holds(state.diagnosis, event.diagnosis):
        return replace(state, stage=Stage.CLOSED, waits_for=None), (SayChanged(now=event.diagnosis), Close(how="dismissed"))
    judged = replace(state, stage=Stage.JUDGED, waits_for=None, again=state.again + 1, seals_failed=0)
    return judged, (SealEvidence(fresh=True),)


def _acted(state: IncidentState, event: ActionEnded) -> Outcome:
    """What was not done is not tried again with the same evidence: a new judgement would bring new evidence with it."""
    if state.stage is not Stage.SEALED or state.waits_for is not None:
        return state, ()
    if event.done and event.requeued:
        # With the ranks whoever watches them is ended: nobody may be left to see the attempt end.
        return replace(state, stage=Stage.CLOSED), (Close(how="requeued"),)
    if event.done:
        return replace(state, stage=Stage.ACTED), ()
    return replace(state, stage=Stage.CLOSED), (Close(how="dismissed"),)


def _seal_failed(state: IncidentState) -> Outcome:
    """Try once more in the other place; then close what is over, and leave what is judged untouched: no action without its bundle."""
    failed = replace(state, seals_failed=state.seals_failed + 1)
    if failed.seals_failed < SEAL_TRIES:
        return failed, (SealEvidence(fresh=not failed.closing),)
    if failed.closing:
        return replace(failed, stage=Stage.CLOSED), (Close(how=failed.closing),)
    return failed, ()


def _over(state: IncidentState, how: str) -> Outcome:
    """It ended by itself, or with its attempt: what is not sealed yet is sealed from what was put aside, if anybody has heard of it."""
    if state.closing:
        return state, ()
    if state.quiet and state.stage is Stage.ALERTED:
        return replace(state, stage=Stage.CLOSED), ()
    if state.stage in {Stage.SEALED, Stage.ACTED} or (state.stage is Stage.ALERTED and state.bundle):
        return replace(state, stage=Stage.CLOSED), (Close(how=how),)
    return replace(state, closing=how, seals_failed=0), (SealEvidence(fresh=False),)
