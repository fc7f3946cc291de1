"""The third failure of one kind in a row stops the job; anything else goes on."""

from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.act.brake import Signature, braked, signature
from rankpatrol.core.diagnosis import Certainty, Diagnosis

CRASH = Diagnosis(
    verdict="crash", cause="user_exception", culprit_ranks=(1,), certainty=Certainty.PROVED, sentence="rank 1 raised", place="f (a.py:1)"
)


def outcome(*steps):
    """Whether the last of these attempts, which failed at these steps, is stopped."""
    history = tuple(signature(CRASH, step) for step in steps)
    return braked(CRASH, history[:-1], history[-1])


def test_the_third_in_a_row_is_stopped_and_says_why():
    found = outcome(21, 21, 21)
    assert (found.verdict, found.cause, found.certainty) == ("stop", "repeated_failure", Certainty.PROVED)
    assert "3 times in a row (user_exception in f (a.py:1) at step 21)" in found.sentence


def test_twice_is_not_enough_and_progress_begins_anew():
    assert outcome(21, 21) is None
    assert outcome(21, 21, 35) is None
    assert outcome(21, 35, 21) is None
    assert outcome(35, 21, 21, 21) is not None


def test_whichever_rank_it_was_it_is_the_same_failure():
    other = Diagnosis(**{name: getattr(CRASH, name) for name in CRASH.__struct_fields__} | {"culprit_ranks": (2,)})
    assert signature(other, 21) == signature(CRASH, 21)


def test_failures_of_which_nothing_is_known_are_not_known_to_be_the_same():
    blank = Diagnosis(verdict="crash", cause="unknown", sentence="?")
    history = (signature(blank, None),) * 2
    assert braked(blank, history, signature(blank, None)) is None


SIGNATURES = st.builds(Signature, cause=st.sampled_from(["a", "b"]), place=st.sampled_from([None, "x"]), step=st.sampled_from([None, 1, 2]))


@given(st.lists(SIGNATURES, max_size=6), SIGNATURES)
def test_nothing_but_three_alike_in_a_row_ever_stops_a_job(history, now):
    if braked(CRASH, tuple(history), now) is not None:
        assert history[-2:] == [now, now]
