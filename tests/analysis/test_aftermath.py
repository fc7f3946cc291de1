"""What becomes of an alert when ranks fail after it."""

from msgspec.structs import replace

from rankpatrol.analysis.aftermath import aftermath, still_there
from rankpatrol.core.diagnosis import Certainty, Diagnosis

SLEEPS = Diagnosis(
    verdict="hang", cause="rank_blocked", culprit_ranks=(1,), victim_ranks=(0, 2), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps"
)
WORKS = Diagnosis(
    verdict="benign_wait",
    cause="long_eval",
    awaited_ranks=(1,),
    victim_ranks=(0, 2),
    certainty=Certainty.SUPPORTED,
    sentence="rank 1 works",
)
ECHOES = Diagnosis(verdict="crash", cause="unknown", victim_ranks=(0, 2), sentence="?", reasons_for=("the time-out ended ranks 0 and 2",))
RAISED = Diagnosis(
    verdict="crash", cause="user_exception", culprit_ranks=(2,), certainty=Certainty.PROVED, sentence="rank 2 raised KeyError"
)


def test_victims_that_time_out_do_not_take_the_name_off_the_suspect():
    found = aftermath(SLEEPS, ECHOES)
    assert (found.verdict, found.cause, found.culprit_ranks, found.victim_ranks) == ("crash", "rank_blocked", (1,), (0, 2))
    assert found.sentence == "rank 1 sleeps; then ranks 0 and 2 ended of it"
    assert found.not_to_be_ended


def test_a_rank_that_still_worked_when_the_time_out_fired_is_not_blamed():
    found = aftermath(WORKS, ECHOES)
    assert (found.verdict, found.cause, found.culprit_ranks, found.awaited_ranks) == ("crash", "timeout_too_short", None, (1,))
    assert "timeout=" in found.suggested[-1]


def test_a_rank_that_fails_of_its_own_is_the_culprit_whoever_was_suspected():
    found = aftermath(SLEEPS, RAISED)
    assert (found.culprit_ranks, found.cause) == ((2,), "user_exception")
    assert "before it ended: rank 1 sleeps" in found.reasons_for


def test_who_is_only_suspected_of_a_crash_does_not_take_the_name_off_the_suspect():
    assert aftermath(SLEEPS, replace(RAISED, certainty=Certainty.SUSPECTED)).culprit_ranks == (1,)


def test_where_the_alert_named_nobody_nobody_is_named():
    assert aftermath(Diagnosis(verdict="undetermined", cause="unknown", sentence="?"), ECHOES) == ECHOES


def test_what_several_raised_while_they_waited_is_the_outcome_of_the_wait():
    """A time-out of the training's own, of which nobody here has heard."""
    own = Diagnosis(
        verdict="crash", cause="user_exception", culprit_ranks=(0, 2), sentence="ranks 0 and 2 raised Late", failure="raised Late"
    )
    found = aftermath(SLEEPS, own)
    assert (found.culprit_ranks, found.cause, found.victim_ranks) == ((1,), "rank_blocked", (0, 2))
    assert found.sentence == "rank 1 sleeps; then ranks 0 and 2 ended of it"


def test_what_all_ranks_raised_is_told_as_it_is():
    everybody = replace(RAISED, culprit_ranks=None, sentence="ranks 0-2 raised Late, each by itself", failure="raised Late")
    assert aftermath(SLEEPS, everybody).sentence == everybody.sentence
    one = Diagnosis(verdict="crash", cause="user_exception", culprit_ranks=(1,), sentence="rank 1 raised Late", failure="raised Late")
    assert aftermath(one, everybody) == everybody
    assert aftermath(one, ECHOES) == one


def test_a_raise_and_the_hang_after_it_are_one_sentence():
    hang = Diagnosis(verdict="hang", cause="rank_blocked", culprit_ranks=(2,), sentence="rank 2 is blocked")
    assert still_there(RAISED, hang).sentence == "rank 2 raised KeyError, and has not gone down since: rank 2 is blocked"
    assert still_there(SLEEPS, hang) == hang


def test_a_rank_that_is_gone_is_not_said_to_stand_there_yet():
    left = Diagnosis(verdict="crash", cause="left_early", culprit_ranks=(2,), sentence="rank 2 left with exit code 0")
    assert still_there(left, left) == left
