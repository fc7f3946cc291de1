"""When a job is not started again, and how long it pauses before it is."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.act.brake import Failure, braked, pause_s, recalled, signature
from rankpatrol.act.suspects import SUSPECTS_MOST, suspect_files
from rankpatrol.core.budget import Budget
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.starts import SuspectFile

NOW = 1.8e9
BUDGET = Budget()
CRASH = Diagnosis(
    verdict="crash",
    cause="user_exception",
    culprit_ranks=(1,),
    certainty=Certainty.PROVED,
    sentence="rank 1 raised",
    place="f (a.py:1)",
    not_to_be_ended="the launcher sees to it",
)
STUCK = Diagnosis(
    verdict="hang",
    cause="data_loader_worker_stuck",
    culprit_ranks=(3,),
    certainty=Certainty.SUPPORTED,
    sentence="rank 3 waits for loader process 4711",
    file="/data/shard-0042.tar",
    file_offset_bytes=1048576,
)


def but(diagnosis, **changes):
    return msgspec.structs.replace(diagnosis, **changes)


def failure(diagnosis=CRASH, step=None, phase=None, at=NOW, attempt=0):
    return Failure(attempt=attempt, incident=attempt + 1, at_unix_s=at, diagnosis=diagnosis, step=step, phase=phase)


def outcome(*steps, diagnosis=CRASH):
    """Whether the last of these attempts, which failed at these steps, is stopped."""
    failures = [failure(diagnosis, step, attempt=attempt) for attempt, step in enumerate(steps)]
    return braked(failures[-1], tuple(failures[:-1]), BUDGET)


def test_the_third_in_a_row_is_stopped_and_shows_all_three():
    found = outcome(21, 21, 21)
    assert (found.verdict, found.cause, found.certainty) == ("stop", "repeated_failure", Certainty.PROVED)
    assert "3 times in a row (user_exception in f (a.py:1) at step 21)" in found.sentence
    assert found.reasons_for[:3] == tuple(f"attempt {n} (incident {n + 1}, step 21): rank 1 raised" for n in range(3))


def test_a_stop_is_an_end_also_where_the_launcher_would_see_to_the_next_attempt():
    assert outcome(21, 21, 21).not_to_be_ended is None


def test_twice_is_not_enough_and_progress_begins_anew():
    assert outcome(21, 21) is None
    assert outcome(21, 21, 35) is None
    assert outcome(21, 35, 21) is None
    assert outcome(35, 21, 21, 21) is not None


def test_an_attempt_that_fails_before_it_has_named_a_step_fails_in_the_same_line():
    """The checkpoint is of the very step before: from the second attempt on, none is named any more."""
    assert "at step 20" in outcome(20, None, None).sentence
    assert outcome(20, None, 30) is None
    assert outcome(20, None, None, diagnosis=but(CRASH, place=None)) is None
    assert outcome(20, 20, 20, diagnosis=but(CRASH, place=None)) is not None
    assert outcome(None, None, None) is not None


def test_other_lines_are_other_failures_though_the_step_is_the_same():
    other = failure(but(CRASH, place="g (a.py:2)"), 20, attempt=1)
    assert braked(failure(step=20, attempt=2), (failure(step=20), other), BUDGET) is None


def test_three_silences_of_one_attempt_are_no_three_failed_attempts():
    stalled = failure(STUCK, 21)
    assert braked(stalled, (stalled, stalled), BUDGET) is None


def test_whichever_rank_it_was_it_is_the_same_failure():
    assert signature(but(CRASH, culprit_ranks=(2,)), 21) == signature(CRASH, 21)


def test_failures_of_which_nothing_is_known_are_not_known_to_be_the_same():
    assert outcome(None, None, None, diagnosis=but(CRASH, cause="sigkill", place=None)) is None


def test_a_script_that_does_not_start_is_known_by_its_last_words():
    """Whoever was seen to end first, and whoever had ended by then."""
    words = "ended with exit code 2 (the last line of its log: can't open file '/x.py': [Errno 2] No such file or directory)"
    names = ("rank 2", "ranks 0-1", "rank 3")
    found = [Diagnosis(verdict="crash", cause="unknown", sentence=f"{name} {words}; rank 5 ended of it", failure=words) for name in names]
    three = [failure(each, attempt=at) for at, each in enumerate(found)]
    stop = braked(three[2], (three[0], three[1]), BUDGET)
    assert stop.sentence.startswith("the same failure 3 times in a row (unknown): no further attempt. Last: rank 3 ended with exit code 2")
    other = failure(but(found[1], failure="ended with exit code 1"), attempt=1)
    assert braked(three[2], (three[0], other), BUDGET) is None


def test_the_third_time_at_a_file_is_the_files_fault_at_whatever_step():
    found = outcome(21, 35, 50, diagnosis=STUCK)
    assert found.cause == "repeated_failure"
    assert found.sentence.startswith("the third time at /data/shard-0042.tar (data_loader_worker_stuck): no further attempt")
    assert outcome(21, 21, 21, diagnosis=but(STUCK, file=None)) is not None


def test_the_second_time_at_a_file_is_said():
    first = failure(STUCK)
    assert recalled(first, ()) is STUCK
    assert recalled(failure(STUCK), (first,)).sentence.endswith("; the second time at /data/shard-0042.tar")
    assert recalled(failure(STUCK), (first,) * 3).sentence.endswith("; the 4th time at /data/shard-0042.tar")
    assert recalled(failure(but(STUCK, file="/data/other")), (first,)).sentence == STUCK.sentence


@pytest.mark.parametrize(
    ("changes", "step", "phase", "verdict", "says"),
    [
        ({"cause": "disk_full"}, 40, "checkpoint", "stop", "the disk is full"),
        ({"cause": "host_oom_kill"}, None, None, "stop", "memory did not suffice for loading"),
        ({"cause": "host_oom_kill"}, None, "initialisation", "stop", "memory did not suffice for loading"),
        ({"cause": "data_worker_killed_oom"}, 0, "first_step", "stop", "memory did not suffice for loading"),
        ({"cause": "host_oom_kill"}, 40, "train_step", None, ""),
        ({"cause": "host_oom_kill"}, None, "train_step", None, ""),
        ({"verdict": "hang", "cause": "rank_blocked"}, 40, "teardown", "zombie_job", "the training is over but does not end"),
        ({"verdict": "crash"}, 40, "teardown", None, ""),
        ({"verdict": "hang"}, 40, "train_step", None, ""),
        ({"cause": "gpu_oom"}, None, "first_step", None, ""),
    ],
)
def test_what_would_only_happen_again_is_not_started_again(changes, step, phase, verdict, says):
    found = braked(failure(but(CRASH, **changes), step, phase), (), BUDGET)
    assert (found.verdict if found else None) == verdict
    assert says in (found.sentence if found else "")


def different(number, spacing_s):
    """So many failures that have nothing in common but their time; the last one is now."""
    return [failure(step=step, attempt=step, at=NOW - (number - 1 - step) * spacing_s) for step in range(number)]


@pytest.mark.parametrize(
    ("number", "spacing_s", "says"),
    [
        (10, 60, None),
        (11, 60, "11 failures within an hour"),
        (30, 2800, None),
        (31, 2800, "31 failures within a day"),
        (100, 3600, None),
    ],
)
def test_a_job_that_fails_too_often_waits_for_a_person(number, spacing_s, says):
    *history, now = different(number, spacing_s)
    found = braked(now, tuple(history), BUDGET)
    assert (found is None) == (says is None)
    assert says is None or says in found.sentence


def test_pauses_grow_and_end_with_the_hour():
    failures = different(9, 60)
    pauses = [pause_s(NOW, tuple(failures[:number]), Budget()) for number in range(10)]
    assert pauses == [0, 0, 0, 15, 30, 60, 120, 240, 300, 300]
    assert pause_s(NOW + 3600 + 1, tuple(failures), Budget()) == 0


@given(st.lists(st.floats(0, 1e6), max_size=60), st.floats(0, 1e7))
def test_no_pause_is_negative_or_longer_than_the_longest(times, now):
    found = pause_s(now, tuple(failure(at=at, attempt=attempt) for attempt, at in enumerate(times)), BUDGET)
    assert 0 <= found <= BUDGET.longest_pause_s


FAILURES = st.builds(
    lambda cause, place, step: failure(but(CRASH, cause=cause, place=place), step),
    st.sampled_from(["a", "b"]),
    st.sampled_from([None, "x"]),
    st.sampled_from([None, 1, 2]),
)


@given(st.lists(FAILURES, max_size=6), FAILURES)
def test_nothing_but_three_alike_in_a_row_ever_stops_a_job_within_its_budget(history, now):
    history = [msgspec.structs.replace(each, attempt=attempt) for attempt, each in enumerate(history)]
    now = msgspec.structs.replace(now, attempt=len(history))
    if braked(now, tuple(history), BUDGET) is not None:
        three = [*history[-2:], now]
        assert len(three) == 3
        assert len({(each.diagnosis.cause, each.diagnosis.place) for each in three}) == 1
        steps = {each.step for each in three}
        assert len(steps - {None}) <= 1
        assert now.diagnosis.place is not None or None not in steps


def test_only_what_a_loader_read_is_suspect_and_each_place_once():
    blocked = but(STUCK, cause="filesystem_stall", file="/out/log.txt")
    other = but(STUCK, file_offset_bytes=None)
    assert suspect_files([STUCK, CRASH, blocked, STUCK, other]) == (
        SuspectFile(file="/data/shard-0042.tar", offset_bytes=1048576),
        SuspectFile(file="/data/shard-0042.tar"),
    )
    many = [but(STUCK, file=f"/data/{number}") for number in range(SUSPECTS_MOST + 5)]
    assert suspect_files(many)[-1].file == many[-1].file
    assert len(suspect_files(many)) == SUSPECTS_MOST
