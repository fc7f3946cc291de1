"""The scorecard's verdict on recorded runs: one good one, and each way to fail."""

import functools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.records import Missing
from rankpatrol.drill.events import Event, EventFile
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.score import Bars, Outcome, Score, score
from rankpatrol.drill.truth import Truth

SAMPLES = Path(__file__).parents[1] / "data" / "drill"
ONSET_UNIX_S = 1795955000.0


@functools.cache
def recorded(name: str) -> tuple[Event, ...]:
    journal = EventFile(SAMPLES / f"{name}.jsonl")
    journal.look()
    assert journal.unreadable == 0
    assert journal.events
    return tuple(journal.events)


def outcome(events: tuple[Event, ...], **changes: object) -> Outcome:
    plain = Outcome(
        fault="F6b",
        expects=Expectation.RECOVERS,
        verdict="hang",
        causes=("data_loader_worker_stuck",),
        run=0,
        seed="s:F6b:0",
        truth=Truth(rank=2, step=17, pid=4711),
        onset_unix_s=ONSET_UNIX_S,
        ended_unix_s=ONSET_UNIX_S + 55,
        resume_step=10,
        events=events,
        exit_code=0,
        finished=True,
        bundles={"incidents/1": True},
        left=(),
        seconds=67.0,
        folder="/somewhere",
    )
    return msgspec.structs.replace(plain, **changes)


def judged(name: str, **changes: object) -> Score:
    return score(outcome(recorded(name), **changes), Bars())


def healthy(name: str, **changes: object) -> Score:
    return judged(name, fault="ends-well", expects=Expectation.ENDS_WELL, truth=Truth(), **changes)


def test_a_good_run_passes_with_its_times_from_the_onset() -> None:
    one = judged("good")
    assert one.complaints == ()
    assert one.passed
    assert (one.suspect_s, one.verdict_s, one.sealed_s, one.ended_s) == (6.2, 21.5, 23.0, 26.0)
    assert one.onset_off_s == 0.0
    assert (one.caught, one.named_rightly, one.process_named, one.resumed_step) == (True, True, True, 10)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("wrong_rank_named", "names rank 0, but it is rank 2"),
        ("wrong_alert_before_the_right_verdict", "names rank 0, but it is rank 2"),
        ("one_too_many_named", "names rank 1, 2, but it is rank 2"),
        ("acted_before_sealed", "before the bundle of incident 1 was sealed"),
        ("never_named", "never: the suspect was named"),
        ("named_too_late", "the suspect was named after 15.4 s, the bar is 15 s"),
        ("wrong_cause", "no verdict hang / data_loader_worker_stuck; verdicts: hang / rank_blocked"),
        ("never_acted", "never: the attempt was acted upon and ended"),
        ("resumed_from_the_wrong_checkpoint", "resumed at step 0, not at 10"),
        ("healthy_attempt_blamed", "attempt 1 was healthy, yet: verdict hang"),
    ],
)
def test_a_run_with_one_fault_of_the_patrol_fails_and_says_which(name: str, complaint: str) -> None:
    one = judged(name)
    assert not one.passed
    assert any(complaint in told for told in one.complaints), one.complaints


@pytest.mark.parametrize("name", ["wrong_rank_named", "wrong_alert_before_the_right_verdict", "one_too_many_named", "never_named"])
def test_only_the_right_rank_alone_counts_as_named_rightly(name: str) -> None:
    assert not judged(name).named_rightly


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"bundles": {"incidents/1": False}}, "the bundle incidents/1 does not verify"),
        ({"bundles": {}}, "the bundle incidents/1 does not verify"),
        ({"exit_code": 1}, "the exit code is 1"),
        ({"exit_code": Missing("not at its end after 240 s")}, "not at its end after 240 s"),
        ({"finished": False}, "the training did not finish"),
        ({"left": ("4711 pt_data_worker: python",)}, "left behind: 4711 pt_data_worker: python"),
        ({"truth": Missing("the fault never struck")}, "the fault never struck"),
        ({"onset_unix_s": Missing("no onset: step 16 was never told")}, "no onset: step 16 was never told"),
        ({"resume_step": None}, "resumed at step 10, not at None"),
    ],
)
def test_good_events_do_not_hide_what_else_went_wrong(changes: dict[str, object], complaint: str) -> None:
    assert any(complaint in told for told in judged("good", **changes).complaints)


def test_without_an_onset_no_time_is_made_up() -> None:
    one = judged("good", onset_unix_s=Missing("no onset"))
    assert (one.suspect_s, one.verdict_s, one.ended_s) == (None, None, None)


@pytest.mark.parametrize("name", ["healthy", "healthy_with_a_closed_alert"])
def test_a_healthy_training_left_alone_passes(name: str) -> None:
    assert healthy(name).complaints == ()


@pytest.mark.parametrize("name", ["healthy_with_an_open_alert", "healthy_called_a_hang", "good"])
def test_a_healthy_training_not_left_alone_fails(name: str) -> None:
    assert not healthy(name).passed


def test_ctrl_c_passes_when_all_ends_soon_and_nothing_is_called_a_hang() -> None:
    stopped = {"expects": Expectation.STOPS, "exit_code": 130, "finished": False, "ended_unix_s": ONSET_UNIX_S + 3}
    assert judged("healthy", **stopped).passed
    assert not judged("healthy", **{**stopped, "ended_unix_s": ONSET_UNIX_S + 41}).passed
    assert not judged("healthy", **{**stopped, "finished": True}).passed
    assert not judged("healthy_called_a_hang", **stopped).passed


def test_a_failed_script_must_not_end_with_zero_nor_be_called_a_hang() -> None:
    failed = {"expects": Expectation.FAILS, "truth": Truth(), "finished": False}
    assert judged("healthy", **failed, exit_code=1).passed
    assert not judged("healthy", **failed, exit_code=0).passed
    assert not judged("healthy_called_a_hang", **failed, exit_code=1).passed


@given(st.floats(0, 60), st.floats(0, 60))
def test_a_later_patrol_never_earns_fewer_complaints(first_s: float, second_s: float) -> None:
    def delayed(by_s: float) -> int:
        events = tuple(msgspec.structs.replace(event, at_unix_s=event.at_unix_s + by_s) for event in recorded("good"))
        return len(score(outcome(events), Bars()).complaints)

    sooner, later = sorted((first_s, second_s))
    assert delayed(sooner) <= delayed(later)


@given(st.integers(0, 3), st.integers(0, 3))
def test_whoever_is_drawn_only_that_rank_is_right(struck: int, named: int) -> None:
    def rename(event: Event) -> Event:
        return msgspec.structs.replace(
            event,
            suspect_ranks=(named,) if event.suspect_ranks else None,
            culprit_ranks=(named,) if event.culprit_ranks else None,
        )

    one = score(outcome(tuple(map(rename, recorded("good"))), truth=Truth(rank=struck, step=17)), Bars())
    assert one.named_rightly == one.passed == (struck == named)
