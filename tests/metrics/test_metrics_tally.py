"""What the events of a job add up to."""

from functools import reduce

import pytest
from readings import NOW, timed

from rankpatrol.metrics.records import Tally
from rankpatrol.metrics.tally import HOUR_S, added, failures_of_the_hour, steps_per_s, total


def progress(*pairs):
    return [{"kind": "progress", "at_unix_s": NOW + at_s, "step": step} for at_s, step in pairs]


def test_the_pace_is_that_of_the_last_minute():
    tally = total(progress(*((second, 2 * second) for second in range(300))))
    assert steps_per_s(tally, NOW + 299) == pytest.approx(2.0)
    assert len(tally.recent) <= 130


def test_many_words_a_second_are_kept_two_a_second():
    tally = total(progress(*((place / 100, place) for place in range(6000))))
    assert len(tally.recent) <= 130
    assert steps_per_s(tally, NOW + 60) == pytest.approx(100, rel=0.05)


def test_a_job_that_stands_slows_down_to_nothing():
    tally = total(progress(*((second, second) for second in range(61))))
    assert [round(steps_per_s(tally, NOW + 60 + still), 2) for still in (0, 30, 61, 5000)] == [1.0, 0.5, 0.0, 0.0]


def test_steps_further_apart_than_the_window_have_a_pace_too():
    tally = total(progress((0, 10), (100, 20)))
    assert steps_per_s(tally, NOW + 100) == pytest.approx(0.1)


@pytest.mark.parametrize("events", [[], progress((0, 5)), progress((0, 50), (1, 0))])
def test_too_few_steps_have_no_pace(events):
    assert steps_per_s(total(events), NOW + 2) is None


def test_an_attempt_begins_anew():
    events = [*progress((0, 50), (10, 60)), {"kind": "attempt_started", "at_unix_s": NOW + 20, "attempt": 1}]
    assert steps_per_s(total(events), NOW + 30) is None
    assert total(events).progress_unix_s is None


def test_failures_are_counted_as_the_brake_does_by_attempt_within_the_hour():
    def verdict(attempt, at_s, word="hang"):
        return {"kind": "verdict", "attempt": attempt, "verdict": word, "onset_unix_s": NOW + at_s}

    tally = total([verdict(0, 0), verdict(1, 10), verdict(1, 20, "crash"), verdict(2, 30, "slow"), verdict(3, 40, "stop")])
    assert failures_of_the_hour(tally, NOW + 100) == 3
    assert failures_of_the_hour(tally, NOW + HOUR_S + 15) == 2
    assert tally.verdicts == {"hang": 2, "crash": 1, "slow": 1, "stop": 1}


def test_a_step_of_an_action_counts_once_by_what_came_of_it():
    events = timed([{"kind": "action", "what": "end_attempt", "done": done} for done in (None, True, None, False, "yes")])
    tally = total(events)
    assert (tally.actions_done, tally.actions_failed) == ({"end_attempt": 1}, {"end_attempt": 1})


def test_foreign_words_are_one_word_and_few():
    events = timed([{"kind": "incident_closed", "how": how} for how in (None, 7, "", "x" * 1000, "ended", *map(str, range(500)))])
    closed = total(events).closed
    assert closed["unknown"] == 4
    assert closed["ended"] == 1
    assert len(closed) <= 50


def test_the_sum_of_a_long_job_is_that_of_its_events_one_by_one():
    begun = [{"kind": "attempt_started", "at_unix_s": NOW, "attempt": 0}]
    events = [*begun, *progress(*((second, second) for second in range(3000))), {"kind": "alert", "at_unix_s": NOW + 3000}]
    events += progress(*((second, second) for second in range(3000, 3500)))
    assert total(events) == reduce(added, events, Tally())
