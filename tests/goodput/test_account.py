"""Where the time of a job went, from its events alone."""

import json
from pathlib import Path

import pytest
from event_files import START, Job, account, alert, verdict

from rankpatrol.core.records import Missing
from rankpatrol.goodput.account import account_of, runs_of
from rankpatrol.goodput.records import BADPUT_TYPES, Part
from rankpatrol.goodput.story import launch_of

RECORDED = Path(__file__).parents[1] / "data" / "goodput"


def seconds(found):
    return {part: round(length, 3) for part, length in found.parts_s.items() if length}


def hang():
    """10 s of start, 100 steps of 1 s, a checkpoint at step 90, a hang for 30 s, 5 s to the next attempt, 10 s to its first step."""
    job = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 101))
    job.at(113, "signal", what="rank 3 has not stirred for 3 s").at(116, "alert", **alert(110, [3])).at(135, "verdict", **verdict(110, [3]))
    job.at(136, "action", incident=1, what="resume_from", done=True).at(140, "action", incident=1, what="end_attempt", done=True)
    job.at(140, "attempt_ended", reason="ended_by_rankpatrol").at(140, "incident_closed", incident=1, how="ended")
    job.attempt(1, 145).at(145, "resumed", checkpoint="c/90", step=90).at(155, "phase", phase="train_step").steps(155, range(91, 121))
    return job.at(185, "attempt_ended", reason="finished").at(186, "job_ended", exit_code=0)


def test_a_hang_costs_its_stall_its_recovery_and_the_steps_done_again():
    found = account(hang())
    assert seconds(found) == {
        Part.INITIALISATION: 10,
        Part.PRODUCTIVE: 90 + 30,
        Part.LOST_WORK: 10,
        Part.STALL: 30,
        Part.RECOVERY: 15,
        Part.IDLE: 1,
    }
    assert found.wall_s == 186
    assert found.ettr_ratio == pytest.approx(120 / 186)
    assert found.remarks == ()


def test_a_slow_spell_and_a_lost_loss_are_no_stall_since_the_steps_go_on():
    job = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 101))
    job.at(60, "verdict", **verdict(50, [3], verdict="slow")).at(90, "incident_closed", incident=1, how="recovered")
    job.at(95, "alert", **{**alert(95, []), "incident": 2, "cause": "loss_nan"}).at(110, "incident_closed", incident=2, how="ended")
    found = account(job.at(110, "attempt_ended", reason="finished").at(110, "job_ended", exit_code=0))
    assert seconds(found) == {Part.INITIALISATION: 10, Part.PRODUCTIVE: 100}
    assert found.cards == ()
    assert [remark.partition(":")[0] for remark in found.remarks] == ["incident 1 (rank_blocked)", "incident 2 (loss_nan)"]


def test_an_incident_is_timed_from_its_onset():
    (card,) = account(hang()).cards
    assert (card.time_to_detect_s, card.time_to_identify_s, card.time_to_recover_s) == (3, 6, 56)
    assert card.nodes == ("n0",)


def test_a_hang_is_compared_with_torchs_own_time_outs():
    (card,) = account(hang()).cards
    assert card.rank_hours == pytest.approx((30 + 15 + 10) * 4 / 3600)
    saved = {each.time_out: each.stall_saved_s for each in card.prevented}
    assert saved == {"NCCL": 600 - 30, "gloo": 1800 - 30}
    assert card.prevented[0].rank_hours_saved == pytest.approx(570 * 4 / 3600)


@pytest.mark.parametrize("done", [{}, {"what": "resume_from", "done": True}, {"what": "end_attempt", "done": False}])
def test_a_hang_that_others_ended_is_not_to_our_credit(done):
    """Such as a job that is only watched, or one of a cluster's hub."""
    job = Job().starts().steps(10, range(1, 11)).at(50, "verdict", **verdict(20, [1]))
    job = job.at(51, "action", incident=1, **done) if done else job
    (card,) = account(job.at(60, "attempt_ended", reason="failed").at(60, "incident_closed", incident=1, how="ended")).cards
    assert card.prevented == ()


def test_a_crash_ends_by_itself_and_is_compared_with_no_time_out():
    job = Job().starts().steps(10, range(1, 11)).at(21, "verdict", **verdict(20, [1], verdict="crash"))
    (card,) = account(job.at(23, "attempt_ended", reason="failed").at(23, "incident_closed", incident=1, how="ended")).cards
    assert card.prevented == ()
    assert (card.stall_s, card.time_to_identify_s) == (3, 1)
    assert isinstance(card.time_to_recover_s, Missing)


def test_checkpoints_are_told_from_training_while_any_rank_saves():
    job = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 41))
    job.at(20, "phase", phase="checkpoint").at(24, "phase", phase="train_step")
    job.at(30, "phase", rank=0, phase="checkpoint").at(31, "phase", rank=1, phase="checkpoint")
    job.at(32, "phase", rank=0, phase="train_step").at(35, "phase", rank=1, phase="train_step")
    assert seconds(account(job.at(50, "attempt_ended", reason="failed")))[Part.CHECKPOINT] == 4 + 5


def test_a_silence_that_ended_by_itself_is_a_stall_of_the_training_and_none_of_a_checkpoint():
    job = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 11)).steps(40, range(11, 21))
    job.at(25, "alert", **alert(20, [1])).at(40, "incident_closed", incident=1, how="recovered")
    job.at(20, "phase", phase="checkpoint").at(35, "phase", phase="train_step")
    found = account(job.at(50, "attempt_ended", reason="failed"))
    assert (found.parts_s[Part.CHECKPOINT], found.parts_s[Part.STALL]) == (15, 5)
    assert found.cards[0].time_to_recover_s == 20


def test_logs_that_name_every_fiftieth_step_do_not_make_the_start_longer():
    job = Job().starts().at(5, "phase", phase="training")
    for at, step in ((60, 50), (110, 100), (160, 150)):
        job.at(at, "progress", step=step)
    assert account(job.at(160, "attempt_ended", reason="failed")).parts_s[Part.INITIALISATION] == 10


def test_an_attempt_that_begins_anew_loses_all_work_before_it_also_of_attempts_long_ago():
    job = Job().starts().steps(0, range(1, 51)).at(50, "attempt_ended", reason="failed")
    job.attempt(1, 50).at(50, "resumed", step=40).steps(50, range(41, 61)).at(70, "attempt_ended", reason="failed")
    job.attempt(2, 70).at(70, "resumed", step=10).steps(70, range(11, 21)).at(80, "attempt_ended", reason="failed")
    found = account(job)
    assert found.parts_s[Part.LOST_WORK] == 40 + 20
    assert found.parts_s[Part.PRODUCTIVE] == 10 + 10


def test_a_job_without_steps_says_that_its_training_time_is_taken_as_productive():
    found = account(Job().starts().at(10, "phase", phase="training").at(100, "attempt_ended", reason="finished"))
    assert seconds(found) == {Part.INITIALISATION: 10, Part.PRODUCTIVE: 90}
    assert "names no step" in found.remarks[-1]


def test_a_requeued_job_waits_in_the_queue_and_recovers():
    first = Job().starts().steps(0, range(1, 11)).at(10, "attempt_ended", reason="failed").at(10, "job_ended", exit_code=1)
    second = Job().at(400, "job_started", command=["train"], ranks=4).at(400, "queued", since=START + 12)
    second.attempt(0, 400, scheduler_restarts=1).at(400, "resumed", step=8).at(410, "phase", phase="train_step").steps(410, range(9, 29))
    found = account(first, second.at(430, "job_ended", exit_code=0))
    assert seconds(found) == {Part.PRODUCTIVE: 8 + 20, Part.LOST_WORK: 2, Part.IDLE: 2, Part.QUEUE: 388, Part.RECOVERY: 10}


def test_a_word_that_the_queue_begins_holds_until_the_next_attempt():
    first = Job().starts().steps(0, range(1, 11)).at(10, "attempt_ended", reason="failed").at(10, "queued", since=START + 10)
    second = Job().at(100, "job_started", command=["train"], ranks=4).attempt(0, 100).steps(100, range(10, 20))
    assert account(first, second).parts_s[Part.QUEUE] == 90


def test_between_two_launches_nobody_queued_the_time_is_idle():
    first = Job().starts().steps(0, range(1, 11)).at(10, "job_ended", exit_code=0)
    second = Job().at(100, "job_started", command=["train"], ranks=4).attempt(0, 100).steps(100, range(11, 21))
    assert account(first, second).parts_s[Part.IDLE] == 90


def test_other_commands_are_other_runs():
    launches = [launch_of("a", Job().starts().content(), 0), launch_of("b", Job(command="other").starts().content(), 1)]
    assert len(runs_of(launches)) == 2


def test_launches_at_the_same_time_are_other_runs():
    launches = [launch_of(name, Job().starts().steps(0, range(1, 60)).content(), place) for place, name in enumerate("ab")]
    assert len(runs_of(launches)) == 2


def test_the_launchers_own_start_counts_where_it_is_told():
    job = Job().at(0, "job_started", command=["train"], ranks=4, launched_unix_s=START - 7).attempt(0, 0).steps(3, range(1, 10))
    assert account(job).span.begin_s == START - 7


@pytest.mark.parametrize("what", ["cut head", "cut tail", "no end of an attempt", "two agents", "clock set back", "interleaved", "garbage"])
def test_what_is_broken_is_said_and_still_accounted_for(what):
    lines = hang().lines
    match what:
        case "cut head":
            content, said = "\n".join(lines[3:]), "no word of the start of attempt 0"
        case "cut tail":
            content, said = "\n".join(lines)[:-30], "could not be read"
        case "no end of an attempt":
            content, said = "\n".join(line for line in lines if "attempt_ended" not in line), "no word of the end of attempt 0"
        case "two agents":
            content, said = "\n".join(line for each in lines for line in (each, each)), "told twice"
        case "clock set back":
            moved = [json.loads(line) for line in lines]
            late = [each | {"at_unix_s": each["at_unix_s"] - 3600} if place > 60 else each for place, each in enumerate(moved)]
            content, said = "\n".join(map(json.dumps, late)), "the clock was set back (59 min 59 s)"
        case "interleaved":
            half = len(lines) // 2
            content, said = "\n".join(line for pair in zip(lines[half:], lines, strict=False) for line in pair), "several writers"
        case _:
            content, said = "\n".join([*lines[:5], "{}", "null", '"x"', '{"at_unix_s": 1e300, "kind": "progress"}', *lines[5:]]), "4 of"
    launch = launch_of("job", content.encode(), 0)
    found = account_of([launch])
    assert any(said in remark for remark in found.remarks), found.remarks
    assert sum(found.parts_s.values()) == pytest.approx(found.wall_s)
    assert min(found.parts_s.values()) >= 0


def test_times_long_before_the_job_are_no_times():
    job = Job().starts().steps(0, range(1, 11)).at(5, "queued", since=0).at(10, "verdict", **verdict(-START, [1]))
    found = account(job.at(10, "attempt_ended", reason="failed"))
    assert (found.wall_s, found.cards[0].time_to_detect_s) == (10, 0)


def test_jobs_whose_command_nobody_knows_are_runs_of_their_own():
    """`watch` attaches to what others started."""
    launches = []
    for place, begin in enumerate((0, 100)):
        job = Job().at(begin, "job_started", command=[], ranks=4).attempt(0, begin).steps(begin, range(1, 11))
        launches.append(launch_of(f"job{place}", job.content(), place))
    assert len(runs_of(launches)) == 2


def test_nothing_in_a_file_is_no_launch():
    assert launch_of("job", b"\n{}\n\xff\xfe", 0) is None


def test_every_badput_has_its_word_in_googles_library():
    assert set(BADPUT_TYPES) == set(Part) - {Part.PRODUCTIVE}


def test_a_recorded_crash_of_four_ranks():
    """SIGSEGV of rank 2 at step 19: torch's own view of it is 0.1 s long; what the events say is in the drill's own log."""
    launch = launch_of("job", (RECORDED / "segv.jsonl").read_bytes(), 0)
    found = account_of([launch])
    (card,) = found.cards
    assert (card.incident.cause, card.incident.culprit_ranks, card.ranks) == ("sigsegv", (2,), 4)
    assert 0 < card.time_to_identify_s < 5 < card.time_to_recover_s < 30
    assert 0 < card.lost_work_s < 3


def test_a_recorded_hang_of_four_ranks_with_their_probes():
    """The drill's own stopwatch said: verdict 10.9 s and end 15.6 s after the onset, resumed at step 10, stuck before step 16."""
    launch = launch_of("job", (RECORDED / "loader.jsonl").read_bytes(), 0)
    found = account_of([launch])
    (card,) = found.cards
    assert (found.attempts, found.ranks, found.remarks) == (2, 4, ())
    assert (card.incident.verdict, card.incident.cause, card.incident.culprit_ranks) == ("hang", "data_loader_worker_stuck", (3,))
    assert card.stall_s == pytest.approx(15.6, abs=0.3)
    assert 0 < card.lost_work_s < 6 * 0.5
    assert {piece.part for piece in found.pieces[-2:]} == {Part.PRODUCTIVE, Part.IDLE}
    assert sum(found.parts_s.values()) == pytest.approx(found.wall_s)
