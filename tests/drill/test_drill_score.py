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
        truth=Truth(rank=2, step=17, pids=(4711,)),
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


def test_where_there_was_no_checkpoint_yet_nothing_is_resumed() -> None:
    events = tuple(event for event in recorded("good") if event.kind != "resumed")
    assert score(outcome(events, resume_step=0), Bars()).complaints == ()
    assert "resumed at step None, not at 10" in score(outcome(events), Bars()).complaints


def test_without_an_onset_no_time_is_made_up() -> None:
    one = judged("good", onset_unix_s=Missing("no onset"))
    assert (one.suspect_s, one.verdict_s, one.ended_s) == (None, None, None)


@pytest.mark.parametrize("name", ["healthy", "healthy_with_a_closed_alert"])
def test_a_healthy_training_left_alone_passes(name: str) -> None:
    assert healthy(name).complaints == ()


@pytest.mark.parametrize("name", ["healthy_with_an_open_alert", "healthy_called_a_hang", "good"])
def test_a_healthy_training_not_left_alone_fails(name: str) -> None:
    assert not healthy(name).passed


def crashed(name: str, **changes: object) -> Score:
    plain = {
        "fault": "F1",
        "expects": Expectation.CRASHES,
        "verdict": "crash",
        "causes": ("user_exception",),
        "in_log_tail": "ValueError: no",
        "log_tails": {"incidents/1": "Traceback (most recent call last):\nValueError: no\n"},
        "bundles": {"incidents/1": True} if any(event.path for event in recorded(name)) else {},
    }
    return score(outcome(recorded(name), **{**plain, **changes}), Bars(suspect_s=3))


def test_a_crash_that_is_proved_sealed_and_survived_passes_without_any_action() -> None:
    one = crashed("crash")
    assert one.complaints == ()
    assert (one.suspect_s, one.verdict_s, one.sealed_s, one.ended_s) == (1.2, 2.2, 3.1, 4.0)
    assert (one.caught, one.named_rightly, one.resumed_step, one.bar_s) == (True, True, 10, 3)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("crash_named_too_late", "the suspect was named after 3.4 s, the bar is 3 s"),
        ("crash_only_supported", "is supported, not proved"),
        ("crash_with_a_victim_named", "names rank 1, 2, but it is rank 2"),
        ("crash_called_a_hang", "the rank had ended, yet: verdict hang / rank_blocked"),
        ("crash_unseen", "never: the suspect was named"),
        ("crash_unseen", "no verdict crash / user_exception; verdicts: none"),
        ("crash_unsealed", "no sealed bundle stands"),
        ("crash_next_attempt_blamed", "attempt 1 was healthy, yet: verdict hang / rank_blocked"),
    ],
)
def test_a_crash_run_with_one_fault_of_the_patrol_fails_and_says_which(name: str, complaint: str) -> None:
    one = crashed(name)
    assert any(complaint in told for told in one.complaints), one.complaints


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"log_tails": {}}, "no bundle holds 'ValueError: no' in the log of rank 2"),
        ({"log_tails": {"incidents/1": "ConnectionError: peer"}}, "no bundle holds 'ValueError: no' in the log of rank 2"),
        ({"bundles": {"incidents/1": False}}, "no sealed bundle stands"),
        ({"resume_step": 0}, "resumed at step 10, not at 0"),
        ({"finished": False}, "the training did not finish"),
        ({"causes": ("left_early",)}, "no verdict crash / left_early"),
    ],
)
def test_good_crash_events_do_not_hide_what_else_went_wrong(changes: dict[str, object], complaint: str) -> None:
    assert any(complaint in told for told in crashed("crash", **changes).complaints)


def timed_out(*, sealed_at_s: float | None, **changes: object) -> Score:
    """The crash's events, with the evidence sealed at another time."""
    events = [event for event in recorded("crash") if event.kind != "bundle_sealed"]
    if sealed_at_s is not None:
        seal = next(event for event in recorded("crash") if event.kind == "bundle_sealed")
        events.append(msgspec.structs.replace(seal, at_unix_s=ONSET_UNIX_S + sealed_at_s))
    plain = {"expects": Expectation.TIMES_OUT, "verdict": "crash", "causes": ("user_exception",)}
    ordered = tuple(sorted(events, key=lambda event: event.at_unix_s))
    return score(outcome(ordered, **{**plain, **changes}), Bars())


def test_evidence_sealed_before_the_time_out_passes() -> None:
    assert timed_out(sealed_at_s=1.5).complaints == ()


@pytest.mark.parametrize("sealed_at_s", [None, 3.1])
def test_evidence_sealed_after_the_time_out_does_not(sealed_at_s: float | None) -> None:
    assert "no evidence was sealed before the time-out" in timed_out(sealed_at_s=sealed_at_s).complaints


def test_a_crash_that_leaves_no_words_needs_none_in_its_bundle() -> None:
    assert crashed("crash", in_log_tail="", log_tails={}).passed


def silent(name: str, until_s: float | None = 40.0, **changes: object) -> Score:
    until = None if until_s is None else ONSET_UNIX_S + until_s
    truth = Truth(rank=0, step=17, at_unix_s=ONSET_UNIX_S, until_unix_s=until)
    return judged(name, **{"fault": "N4a", "expects": Expectation.SILENT, "truth": truth, "causes": ("none",), **changes})


def test_a_silence_may_be_alerted_and_called_a_benign_wait() -> None:
    one = silent("silence")
    assert one.complaints == ()
    assert (one.silent_s, one.alerts, one.bar_s, one.suspect_s) == (40.0, 1, None, None)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("silence_called_a_hang", "the training was healthy, yet: verdict hang / rank_blocked"),
        ("silence_called_a_crash", "the training was healthy, yet: verdict crash / user_exception"),
        ("silence_alerted_for_ever", "an alert was never closed"),
        ("good", "the training was healthy, yet: action restart the ranks"),
    ],
)
def test_a_silence_not_left_alone_fails_and_says_why(name: str, complaint: str) -> None:
    assert any(complaint in told for told in silent(name).complaints)


def test_a_silence_that_was_short_or_never_over_proves_nothing() -> None:
    assert any("proves nothing" in told for told in silent("silence", until_s=20.0).complaints)
    assert any("never over" in told for told in silent("silence", until_s=None).complaints)
    assert not silent("silence", finished=False).passed


def test_ctrl_c_passes_when_all_ends_soon_and_nothing_is_called_a_hang() -> None:
    stopped = {"expects": Expectation.STOPS, "exit_code": 130, "finished": False, "ended_unix_s": ONSET_UNIX_S + 3}
    assert judged("healthy", **stopped).passed
    assert not judged("healthy", **{**stopped, "ended_unix_s": ONSET_UNIX_S + 41}).passed
    assert not judged("healthy", **{**stopped, "finished": True}).passed
    assert not judged("healthy_called_a_hang", **stopped).passed


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


def loop(*events: dict[str, object], exit_code: int = 1) -> tuple[str, ...]:
    """The complaints about a run in which every attempt fails alike."""
    lines = [{"at_unix_s": 100.0 + number, **event} for number, event in enumerate(events)]
    seen = outcome(
        tuple(msgspec.convert(line, Event) for line in lines),
        fault="F25",
        expects=Expectation.LOOPS,
        verdict="stop",
        causes=("repeated_failure",),
        exit_code=exit_code,
        bundles={"/job/incidents/3": True},
    )
    return score(seen, Bars()).complaints


STARTS = [{"kind": "attempt_started", "attempt": number} for number in range(3)]
STOP = {"kind": "verdict", "attempt": 2, "incident": 3, "verdict": "stop", "cause": "repeated_failure"}
SEALED = {"kind": "bundle_sealed", "attempt": 2, "incident": 3, "path": "/job/incidents/3"}
END = {"kind": "action", "attempt": 2, "incident": 3, "what": "end_job", "done": True}


def test_a_loop_passes_when_the_third_failure_stops_the_job() -> None:
    assert loop(*STARTS, STOP, SEALED, END) == ()


def test_a_loop_that_goes_on_or_is_not_stopped_by_us_fails() -> None:
    fourth = {"kind": "attempt_started", "attempt": 3}
    assert loop(*STARTS, fourth, STOP, SEALED, END) == ("4 attempts were made, not 3",)
    assert "the job was not ended" in loop(*STARTS, STOP, SEALED)
    assert any("no verdict stop / repeated_failure" in complaint for complaint in loop(*STARTS))
    assert "the job failed, yet the exit code is 0" in loop(*STARTS, STOP, SEALED, END, exit_code=0)


def test_whoever_acts_while_nobody_may_fails() -> None:
    acted = next(event for event in recorded("good") if event.kind == "action" and event.what != "resume_from").at_unix_s
    for until_unix_s, wrong in ((acted + 1, True), (acted - 1, False)):
        one = judged("good", truth=Truth(rank=2, step=17, pids=(4711,), until_unix_s=until_unix_s))
        assert any("nobody was to act yet" in complaint for complaint in one.complaints) is wrong


def test_what_was_done_to_a_neighbour_fails_a_run_that_went_well_otherwise() -> None:
    one = judged("good", truth=Truth(rank=2, step=17, pids=(4711,), harmed=("the neighbour's training (exit code 1)",)))
    assert one.complaints == ("the neighbour's training (exit code 1) was of nobody's concern, yet was touched",)


DISK = (
    Event(at_unix_s=ONSET_UNIX_S, kind="attempt_started"),
    Event(
        at_unix_s=ONSET_UNIX_S + 2, kind="verdict", verdict="stop", cause="disk_full", incident=1, certainty="proved", culprit_ranks=(0,)
    ),
    Event(at_unix_s=ONSET_UNIX_S + 3, kind="bundle_sealed", incident=1, path="incidents/1"),
    Event(at_unix_s=ONSET_UNIX_S + 4, kind="action", what="end_job", incident=1),
)


def full_disk(events: tuple[Event, ...] = DISK, **changes: object) -> tuple[str, ...]:
    plain = {"expects": Expectation.KEEPS, "verdict": "stop", "causes": ("disk_full",), "truth": Truth(rank=0, step=21), "exit_code": 1}
    log = {"log_tails": {"incidents/1": "unexpected pos 7 vs 8"}, "in_log_tail": "unexpected pos"}
    return score(outcome(events, **{**plain, **log, "finished": False, **changes}), Bars()).complaints


def test_a_full_disk_passes_where_the_job_is_ended_for_good_and_the_last_good_checkpoint_is_known() -> None:
    assert full_disk() == ()
    again = (*DISK, Event(at_unix_s=ONSET_UNIX_S + 9, kind="attempt_started", attempt=1))
    assert full_disk(again) == ("the training was started again",)
    assert full_disk(DISK[:3]) == ("the job was not ended",)
    lost = Truth(rank=0, step=21, harmed=("the last good checkpoint",))
    assert full_disk(truth=lost) == ("not kept, or not told as it is: the last good checkpoint",)


def suspected(*more: Event, **facts: object) -> tuple[str, ...]:
    plain = {"kind": "alert", "cause": "rank_missing_collective", "certainty": "suspected", "incident": 1, "suspect_ranks": (2,)}
    alert = Event(**{"at_unix_s": ONSET_UNIX_S + 6, **plain, **facts})  # type: ignore[arg-type]
    causes = ("rank_missing_collective",)
    return score(outcome((alert, *more), expects=Expectation.SUSPECTS, causes=causes), Bars()).complaints


def test_a_suspicion_passes_as_long_as_it_stays_one() -> None:
    assert suspected() == ()
    assert suspected(certainty="supported") == (
        "alert suspected / rank_missing_collective names rank 2 is supported, which cannot be known from outside",
    )
    assert len(suspected(suspect_ranks=(1,))) == 2
    assert suspected(cause="unknown") == ("no alert of rank_missing_collective",)
    judged_too = Event(
        at_unix_s=ONSET_UNIX_S + 30, kind="verdict", verdict="hang", cause="rank_missing_collective", incident=1, culprit_ranks=(2,)
    )
    assert len(suspected(judged_too)) == 1
