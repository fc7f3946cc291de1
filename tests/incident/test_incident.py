"""An incident's life: what must follow what, in any order of events."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.incident.machine import replay, step, still_holds
from rankpatrol.incident.records import (
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
)

HANG = Diagnosis(verdict="hang", cause="rank_blocked", culprit_ranks=(1,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps")
NAMED = SuspectNamed(incident=1, attempt=0, onset_unix_s=1.8e9, diagnosis=HANG)
VERDICT = VerdictGiven(onset_unix_s=1.8e9, diagnosis=HANG)
NEARS = TimeoutNears(fires_in_s=5.0)
SEALED = BundleSealed(path="/job/incidents/1")
ACT, OBSERVE, ASK = IncidentPolicy(act=True), IncidentPolicy(act=False), IncidentPolicy(act=True, ask=True)
HELD, UNPAUSED, YES = ActionHeld(by="eve@node1", since_unix_s=1.8e9), Unpaused(), AnsweredYes(by="eve@node1")
STILL_SO = LookedAgain(diagnosis=HANG)


def live(*events, policy=ACT):
    """The instructions of each event in turn, and the last state."""
    state, told = None, []
    for event in events:
        state, instructions = step(state, event, policy)
        told.append(instructions)
    return state, told


def test_the_whole_life():
    state, told = live(NAMED, VERDICT, SEALED, ActionEnded(done=True), AttemptEnded(ordered=False))
    assert told == [
        (RaiseAlert(),),
        (GiveVerdict(), SealEvidence(fresh=True)),
        (CarryOut(bundle="/job/incidents/1"),),
        (),
        (Close(how="ended"),),
    ]
    assert state.stage is Stage.CLOSED


def test_a_requeue_closes_at_once_since_nobody_may_be_left_to_see_the_end():
    state, told = live(NAMED, VERDICT, SEALED, ActionEnded(done=True, requeued=True), AttemptEnded(ordered=True))
    assert told[3:] == [(Close(how="requeued"),), ()]
    assert state.stage is Stage.CLOSED


def test_observe_seals_and_never_acts():
    _, told = live(NAMED, VERDICT, SEALED, ProgressReturned(), policy=OBSERVE)
    assert told[2:] == [(), (Close(how="recovered"),)]


def test_what_recovers_by_itself_leaves_the_evidence_of_its_alert():
    state, told = live(NAMED, ProgressReturned(), SEALED)
    assert told[1:] == [(SealEvidence(fresh=False),), (Close(how="recovered"),)]
    assert state.bundle == "/job/incidents/1"


def test_an_attempt_that_ends_before_the_verdict_closes_the_incident():
    assert live(NAMED, AttemptEnded(ordered=False), SEALED)[1][-1] == (Close(how="ended"),)
    assert live(NAMED, AttemptEnded(ordered=True), SEALED)[1][-1] == (Close(how="dismissed"),)


def test_who_ends_a_job_after_a_verdict_has_not_dismissed_it():
    assert live(NAMED, VERDICT, SEALED, AttemptEnded(ordered=True))[1][-1] == (Close(how="ended"),)


def test_evidence_that_cannot_be_sealed_is_tried_in_the_other_place_and_then_nothing_is_done():
    state, told = live(NAMED, VERDICT, SealFailed(why="full"), SealFailed(why="full"))
    assert told[2:] == [(SealEvidence(fresh=True),), ()]
    assert state.stage is Stage.JUDGED


def test_evidence_is_sealed_before_a_time_out_fires_and_the_incident_goes_on():
    state, told = live(NAMED, NEARS, SEALED, AttemptEnded(ordered=False))
    assert told[1:] == [(SealEvidence(fresh=True),), (), (Close(how="ended"),)]
    assert state.bundle == SEALED.path


def test_a_verdict_after_that_seals_anew_before_it_acts():
    late = BundleSealed(path="/job/incidents/1-at-verdict")
    _, told = live(NAMED, NEARS, SEALED, VERDICT, late)
    assert told[3:] == [(GiveVerdict(), SealEvidence(fresh=True)), (CarryOut(bundle=late.path),)]


def test_a_time_out_that_nears_is_told_where_the_alert_was_quiet():
    assert live(msgspec.structs.replace(NAMED, quiet=True), NEARS)[1][1] == (RaiseAlert(), SealEvidence(fresh=True))


def test_what_recovers_after_an_early_seal_needs_no_second_one():
    assert live(NAMED, NEARS, SEALED, ProgressReturned())[1][-1] == (Close(how="recovered"),)


def test_an_action_that_was_not_done_closes_the_incident_so_that_new_evidence_can_come():
    state, told = live(NAMED, VERDICT, SEALED, ActionEnded(done=False, why="stale"))
    assert told[-1] == (Close(how="dismissed"),)
    assert step(state, msgspec.structs.replace(NAMED, incident=2), ACT)[1] == (RaiseAlert(),)


def test_a_suspicion_is_never_acted_upon():
    weak = msgspec.structs.replace(HANG, certainty=Certainty.SUSPECTED)
    assert live(NAMED, VerdictGiven(onset_unix_s=0.0, diagnosis=weak), SEALED)[1][-1] == ()


def test_what_an_end_would_not_help_is_sealed_and_told_but_not_ended():
    frozen = msgspec.structs.replace(HANG, not_to_be_ended="rank 1 is in uninterruptible sleep")
    assert live(NAMED, VerdictGiven(onset_unix_s=0.0, diagnosis=frozen), SEALED)[1][-1] == ()


def test_a_closed_incident_hears_nothing_but_a_new_suspect():
    state, told = live(NAMED, AttemptEnded(ordered=False), SEALED, VERDICT, SEALED, ActionEnded(done=True))
    assert told[3:] == [(), (), ()]
    state, instructions = step(state, msgspec.structs.replace(NAMED, incident=2), ACT)
    assert (state.incident, instructions) == (2, (RaiseAlert(),))


def test_a_paused_action_waits_and_is_taken_after_the_pause_on_new_evidence_alone():
    state, told = live(NAMED, VERDICT, SEALED, HELD, UNPAUSED, STILL_SO, BundleSealed(path="/job/incidents/1.2"))
    assert told[3:] == [(), (LookAgain(),), (SealEvidence(fresh=True),), (CarryOut(bundle="/job/incidents/1.2"),)]
    assert state.bundle_name() == "1.2"


@pytest.mark.parametrize(
    "now",
    [
        msgspec.structs.replace(HANG, culprit_ranks=(2,)),
        msgspec.structs.replace(HANG, cause="rank_stopped"),
        msgspec.structs.replace(HANG, certainty=Certainty.SUSPECTED),
        msgspec.structs.replace(HANG, not_to_be_ended="rank 1 is in D state"),
        msgspec.structs.replace(HANG, verdict="benign_wait", culprit_ranks=None, awaited_ranks=(1,)),
    ],
)
def test_what_has_changed_during_the_pause_is_not_acted_upon(now):
    state, told = live(NAMED, VERDICT, SEALED, HELD, UNPAUSED, LookedAgain(diagnosis=now))
    assert told[-1] == (SayChanged(now=now), Close(how="dismissed"))
    assert state.stage is Stage.CLOSED


def test_a_stop_is_still_one_while_the_ranks_that_failed_last_stand_as_they_did():
    stop = msgspec.structs.replace(HANG, verdict="stop", cause="repeated_failure")
    assert still_holds(stop, HANG)
    assert not still_holds(stop, msgspec.structs.replace(HANG, culprit_ranks=(0,)))


def test_what_recovers_during_a_pause_is_closed_and_never_acted_upon():
    state, told = live(NAMED, VERDICT, SEALED, HELD, ProgressReturned(), UNPAUSED)
    assert told[-2:] == [(Close(how="recovered"),), ()]
    assert state.stage is Stage.CLOSED


def test_a_question_is_asked_and_a_yes_is_followed_after_a_fresh_look():
    _, told = live(NAMED, VERDICT, SEALED, YES, STILL_SO, SEALED, policy=ASK)
    assert told[2:] == [(AskPerson(),), (LookAgain(),), (SealEvidence(fresh=True),), (CarryOut(bundle="/job/incidents/1"),)]


def test_without_an_answer_nothing_follows_a_question():
    _, told = live(NAMED, VERDICT, SEALED, UNPAUSED, STILL_SO, ProgressReturned(), YES, policy=ASK)
    assert told[2:] == [(AskPerson(),), (), (), (Close(how="recovered"),), ()]


def test_a_yes_does_not_outlast_a_pause():
    _, told = live(NAMED, VERDICT, SEALED, YES, STILL_SO, SEALED, HELD, UNPAUSED, STILL_SO, SEALED, policy=ASK)
    assert told[-1] == (AskPerson(),)


EVENTS = st.lists(
    st.sampled_from(
        [
            NAMED,
            VERDICT,
            SEALED,
            SealFailed(why="full"),
            ActionEnded(done=True),
            ActionEnded(done=False),
            ProgressReturned(),
            AttemptEnded(ordered=False),
            AttemptEnded(ordered=True),
            HELD,
            UNPAUSED,
            YES,
            STILL_SO,
        ]
    ),
    max_size=12,
)


@given(EVENTS, st.sampled_from([ACT, OBSERVE, ASK]))
def test_no_order_of_events_acts_before_a_seal_or_under_observe(events, policy):
    sealed = judged = False
    for event, instructions in zip(events, live(*events, policy=policy)[1], strict=True):
        sealed, judged = sealed or event == SEALED, judged or event == VERDICT
        for instruction in instructions:
            if isinstance(instruction, CarryOut):
                assert policy is not OBSERVE
                assert policy is ACT or YES in events
                assert sealed
                assert judged


@given(EVENTS, st.sampled_from([ACT, ASK]))
def test_after_a_pause_no_order_of_events_acts_without_a_fresh_look_and_a_fresh_seal(events, policy):
    fresh, told = True, False
    for event, instructions in zip(events, live(*events, policy=policy)[1], strict=True):
        if event == NAMED:
            fresh = True
        if event == HELD and told:  # it is the answer to an order: where none was given, nothing was held
            fresh = False
        told = (told and event not in {HELD, NAMED}) or any(isinstance(instruction, CarryOut) for instruction in instructions)
        if any(instruction == SealEvidence(fresh=True) for instruction in instructions):
            fresh = True
        assert fresh or not any(isinstance(instruction, CarryOut) for instruction in instructions)


@given(EVENTS, st.integers(0, 12))
def test_an_agent_that_stops_anywhere_goes_on_from_the_record(events, cut):
    """What was recorded, written and read back, gives the state and the open instruction of the agent that never stopped."""
    encoded = [msgspec.json.encode(event) for event in events[:cut]]
    read_back = [msgspec.json.decode(line, type=IncidentEvent) for line in encoded]
    state, pending = replay(read_back, ACT)
    live_state, told = live(*events[:cut])
    assert (state, pending) == (live_state, told[-1] if told else ())
