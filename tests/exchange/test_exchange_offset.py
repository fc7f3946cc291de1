"""The offset of another node's clock, and the pauses between tries."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocks import FakeClock
from rankpatrol.core.records import Missing
from rankpatrol.exchange.backoff import MOST_S, pauses
from rankpatrol.exchange.offset import ClockOffset, RoundTrip, estimate_offset, measure_offset


@given(st.floats(-1e4, 1e4), st.lists(st.tuples(st.floats(1e-4, 5), st.floats(0, 1)), min_size=1, max_size=9))
def test_the_true_offset_is_always_within_what_is_said(offset_s, ways):
    """However long each way takes: their clock is read at some moment of the round trip."""
    asked = 1.8e9
    trips = [RoundTrip(asked_unix_s=asked, took_s=took, theirs_unix_s=asked + took * share + offset_s) for took, share in ways]
    seen = estimate_offset(trips)
    assert abs(seen.offset_s - offset_s) <= seen.within_s + 1e-5  # floats of 1.8e9 have steps of 2.4e-7
    assert seen.within_s == min(took for took, _ in ways) / 2


def test_no_round_trip_tells_nothing():
    assert estimate_offset([]) is None


class Node:
    """Answers after as long as the list says, with a clock that is ahead by `ahead_s`."""

    def __init__(self, clock, took_s, ahead_s=0.0):
        self._clock, self._took_s, self._ahead_s = clock, list(took_s), ahead_s

    def ask(self, node, command, body, deadline_s):
        took_s = self._took_s.pop(0)
        if took_s > deadline_s:
            self._clock.advance(deadline_s)
            return Missing("no answer")
        self._clock.advance(took_s / 2)
        answer = repr(self._clock.unix_s() + self._ahead_s).encode()
        self._clock.advance(took_s / 2)
        return answer


def test_the_quickest_of_several_answers_counts():
    clock = FakeClock()
    seen = measure_offset(Node(clock, [0.5, 0.002, 0.4, 0.3, 0.3, 0.3, 0.3], ahead_s=-12.5), "n1", clock, 60)
    assert seen == ClockOffset(offset_s=pytest.approx(-12.5, abs=1e-5), within_s=pytest.approx(0.001))


def test_what_came_before_the_deadline_counts():
    clock = FakeClock()
    seen = measure_offset(Node(clock, [0.4, 9.0], ahead_s=3), "n1", clock, 1)
    assert seen.within_s == pytest.approx(0.2)


def test_a_node_that_does_not_answer_has_no_offset():
    clock = FakeClock()
    assert measure_offset(Node(clock, [9.0]), "n1", clock, 1) == Missing("no answer")
    assert isinstance(measure_offset(Node(clock, []), "n1", clock, 0), Missing)


@pytest.mark.parametrize("answer", [b"", b"soon", b"nan", b"inf", b"\xff"])
def test_what_is_no_time_is_no_offset(answer):
    class Liar:
        def ask(self, node, command, body, deadline_s):
            return answer

    assert isinstance(measure_offset(Liar(), "n1", FakeClock(), 1), Missing)


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_pauses_stay_below_a_bound_that_doubles_and_never_fall_to_nothing(chances):
    seen = list(itertools.islice(pauses(iter(chances).__next__), 12))
    assert all(0 < pause_s <= min(MOST_S, 2.0**number) for number, pause_s in enumerate(seen))


def test_pauses_differ_by_chance_alone():
    assert list(itertools.islice(pauses(lambda: 1.0), 7)) == [1, 2, 4, 8, 16, 20, 20]
    assert list(itertools.islice(pauses(lambda: 0.5), 7)) == [0.5, 1, 2, 4, 8, 10, 10]
