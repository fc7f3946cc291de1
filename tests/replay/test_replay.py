"""Recordings through the same judge in virtual time."""

import contextlib
import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.cli.main import call
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import BadInput, UsageProblem
from rankpatrol.judge.records import AttemptBegan, Judged, Observed, Policy, RankActivity, Suspected
from rankpatrol.judge.tape import AttemptOver, CrashFound, TapeBegan, TapeWriter, WallMoved, read_tape
from rankpatrol.replay.compare import conclusions, differences
from rankpatrol.replay.play import harmful, replay
from rankpatrol.replay.settings import changed
from replay.tapes import BEGAN_S, OPEN, STUCK, WORKS, Job


def played(job, **changes):
    policy = changed(job.policy, changes) if changes else None
    return replay(read_tape(job.lines), policy)


def kinds(replayed):
    return [entry.kind for entry in replayed.entries]


def first(replayed, kind):
    return next((entry.at_s for entry in replayed.entries if entry.kind == kind), None)


activities = st.builds(
    RankActivity,
    rank=st.just(0),
    ended=st.booleans(),
    failed=st.booleans(),
    joined=st.booleans(),
    traced=st.booleans(),
    stopped=st.booleans(),
    main_thread_ticks=st.integers(0, 1 << 40),
    switches=st.integers(0, 1 << 40),
    step=st.none() | st.integers(0, 1 << 40),
    marked_steps=st.none() | st.integers(0, 1 << 40),
    phase=st.sampled_from([None, "train_step", "checkpoint"]),
    group_timeout_s=st.none() | st.floats(1, 1e6),
)
rounds = st.lists(st.tuples(st.floats(0, 1e9), st.lists(activities, max_size=4)), max_size=12)


@given(rounds)
def test_whatever_is_observed_is_read_back_exactly(seen):
    events = [
        Observed(at_s=at_s, ranks=tuple(msgspec.structs.replace(each, rank=rank) for rank, each in enumerate(ranks)))
        for at_s, ranks in seen
    ]
    job = Job()
    writer, began = TapeWriter(), next(iter(read_tape(job.lines)))
    lines = [writer.line(item) for item in (began, *events)]
    assert list(read_tape(lines)) == [began, *events]


moves = st.tuples(
    st.sampled_from(["move", "stand", "one_stands", "no_steps"]),
    st.sampled_from([0.5, 1.0, 1.25]),
    st.integers(1, 45),
    st.sampled_from([STUCK, WORKS, OPEN]),
    st.sampled_from([{}, {"phase": "checkpoint"}, {"traced": True}, {"group_timeout_s": 30.0}, {"joined": False}]),
)


def live(stories, policy):
    job = Job(policy)
    for what, round_s, seconds, answer, changes in stories:
        job.round_s, job.answer = round_s, answer
        job.moving = {"stand": set(), "one_stands": {0}}.get(what, {0, 1})
        job.pass_time(seconds, steps_per_s=0 if what == "no_steps" else 3, **changes)
    job.over()
    return job


@settings(max_examples=60, deadline=None)
@given(st.lists(moves, max_size=8), st.sampled_from([Policy(), Policy(patience_s=10.0, benign_alert_s=5.0)]))
def test_a_replay_under_its_own_settings_finds_exactly_what_was_found_live(stories, policy):
    job = live(stories, policy)
    again = played(job)
    assert list(again.findings) == job.findings
    assert again.as_said
    assert again.looks_missed == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(moves, max_size=6), st.floats(1, 400))
def test_a_replay_is_the_same_byte_for_byte_each_time(stories, patience_s):
    job = live(stories, Policy())
    one, two = (played(job, patience_s=patience_s) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


def test_less_patience_gives_the_verdict_sooner():
    job = Job()
    job.pass_time(30)
    job.stand(300)
    job.over(by_us=True)
    as_recorded, sooner = played(job), played(job, patience_s="60s")
    assert [kind for kind in kinds(as_recorded) if kind != "attempt"][:3] == ["alert", "verdict", "action"]
    assert 110 <= first(as_recorded, "action") - first(sooner, "action") <= 130
    assert harmful(sooner.endings) == ()
    difference = next(each for each in differences(as_recorded, sooner) if each.kind == "verdict")
    assert difference.now_s < difference.recorded_s


def test_too_little_patience_would_have_ended_a_job_that_went_on_by_itself():
    job = Job()
    job.pass_time(30)
    job.stand(60)
    job.pass_time(120)
    job.over()
    assert "action" not in kinds(played(job))
    hasty = played(job, patience_s=20)
    (ending,) = harmful(hasty.endings)
    assert 30 + 20 <= ending.at_s <= 30 + 30
    assert 30 <= ending.went_on_s <= 42
    assert "went on by itself" in conclusions(hasty)[0]


def test_what_was_ended_by_the_recording_patrol_stays_unknown():
    job = Job(Policy(patience_s=60.0))
    job.pass_time(30)
    job.stand(70)
    job.over(by_us=True)
    patient = played(job, patience_s=180)
    assert "verdict" not in kinds(patient)
    hasty = played(job, patience_s=20)
    assert hasty.endings[0].goes_on_unseen
    assert any("not known" in line for line in conclusions(hasty))


def test_looks_that_nobody_took_are_said_and_never_made_up():
    job = Job()
    job.pass_time(30)
    job.stand(60)
    job.over()
    eager = played(job, still_budget_s=1, still_floor_s=1, still_steps=1)
    assert eager.looks_missed > 0
    said = "1 look that these settings ask for was not taken then: the next one"
    assert any(line.startswith(said) for line in conclusions(msgspec.structs.replace(eager, looks_missed=1)))
    recorded_looks = [at_s for at_s, finding in job.findings if isinstance(finding, Suspected)]
    assert first(eager, "alert") >= recorded_looks[0] - BEGAN_S - 2.1


def test_nothing_is_done_twice_in_an_attempt_that_would_have_been_ended():
    job = Job()
    job.pass_time(30)
    for _ in range(3):
        job.stand(60)
        job.pass_time(200)
    job.over()
    assert kinds(played(job, patience_s=20, learned_factor=0)).count("action") == 1


def test_healthy_steps_of_several_minutes_end_nobody():
    """The ranks wait for their devices in silence for four minutes a step, as in a large job with blocking synchronisation (N12)."""
    for answer in (OPEN, WORKS):
        job = Job()
        job.pass_time(10, steps_per_s=0)
        for _ in range(12):
            job.stand(240, answer=answer)
            job.pass_time(2, steps_per_s=1)
        job.over()
        told = played(job)
        assert {"verdict", "action"}.isdisjoint(kinds(told))
        assert kinds(told).count("alert") <= 1
        assert kinds(told).count("alert") == kinds(told).count("incident_closed")


def test_a_minute_of_silence_that_comes_again_and_again_is_expected_and_told_once():
    job = Job()
    job.pass_time(30)
    for _ in range(10):
        job.stand(90)
        job.pass_time(60)
    job.over()
    told = played(job)
    assert kinds(told).count("alert") == 1
    assert "verdict" not in kinds(told)


def test_a_hang_is_still_a_hang_where_steps_take_minutes():
    job = Job()
    job.pass_time(10, steps_per_s=0)
    for _ in range(4):
        job.stand(240, answer=OPEN)
        job.pass_time(2, steps_per_s=1)
    job.stand(1200)
    job.over()
    told = played(job)
    assert kinds(told).count("verdict") == 1
    assert first(told, "verdict") - (10 + 4 * 242) >= 360  # half as long again as the silences it has taught


@pytest.mark.parametrize("moved_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps_changes_no_finding(moved_s):
    job, jumped = Job(), Job()
    for each in (job, jumped):
        each.pass_time(30)
        each.moving = set()
        each.pass_time(100)
        if each is jumped:
            assert played(each).looks_missed == 0
            each.write(WallMoved(at_s=each.at_s, unix_s=1.8e9 + each.at_s + moved_s))
        each.pass_time(150)
        each.over()
    told, plain = played(jumped), played(job)
    assert told.findings == plain.findings
    assert [(entry.at_s, entry.onset_s) for entry in told.entries] == [(entry.at_s, entry.onset_s) for entry in plain.entries]
    assert any("wall clock was moved" in remark for remark in told.remarks)


def test_eight_ranks_that_train_take_little_room():
    job = Job(ranks=8)
    before = sum(map(len, job.lines))
    job.pass_time(600)
    assert (sum(map(len, job.lines)) - before) * 6 < 400_000


def test_ranks_that_stand_take_next_to_none():
    job = Job(ranks=64)
    job.pass_time(10)
    job.answer = None
    job.moving = set()
    size = sum(map(len, job.lines))
    for _ in range(600):
        job.at_s = round(job.at_s + 1.0, 3)
        job.write(Observed(at_s=job.at_s, ranks=tuple(job.ranks)))
    assert sum(map(len, job.lines)) - size < 600 * 8


def test_a_line_that_an_agents_death_cut_off_is_left_out():
    job = Job()
    job.pass_time(20)
    torn = [*job.lines[:-1], job.lines[-1][:3]]
    assert len(list(read_tape(torn))) == len(list(read_tape(job.lines))) - 1
    successor = Job()
    successor.pass_time(5)
    told = replay(read_tape([*torn, b"\n", *successor.lines]))
    assert any("a new agent took over" in remark for remark in told.remarks)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the recording is empty"),
        ([b"step 1 loss 0.5\n"], "this is no recording"),
        ([b"[1000,1]\n", b"{}\n"], "this is no recording"),
        ([b'{"type":"attempt_began","at_s":1.0,"attempt":0,"world_size":2}\n'], "this is no recording"),
    ],
)
def test_what_is_no_recording_is_said_to_be_none(lines, words):
    with pytest.raises(BadInput, match=words):
        list(read_tape(lines))


@given(st.integers(0, 40), st.binary(max_size=40).filter(lambda junk: b"\n" not in junk and junk.strip()))
def test_a_spoiled_recording_is_refused_or_read_but_never_a_traceback(at, junk):
    job = Job()
    job.pass_time(40)
    lines = [*job.lines[:at], junk + b"\n", *job.lines[at:]]
    with contextlib.suppress(BadInput):
        list(read_tape(lines))


def test_a_recording_of_a_later_version_is_refused():
    writer = TapeWriter()
    began = TapeBegan(version=99, job="j", at_s=1.0, unix_s=2.0, policy=Policy(), acts=True, state=Job().state)
    with pytest.raises(BadInput, match="later version"):
        list(read_tape([writer.line(began)]))


@pytest.mark.parametrize(
    ("settings_given", "words"),
    [
        ({"patiance": "3"}, "Did you mean patience_s"),
        ({"looks": "3"}, "agreeing_looks"),
        ({"patience_s": "soon"}, "Write a number with its unit"),
        ({"patience_s": "-3"}, "not negative"),
        ({"patience_s": "nan"}, "not negative"),
        ({"agreeing_looks": "1.5"}, "Write 1, 2, 3"),
        ({"learned_factor": "2s"}, "Write it as"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_nearest_name(settings_given, words):
    with pytest.raises(UsageProblem) as refused:
        changed(Policy(), settings_given)
    assert words in refused.value.help


def test_settings_are_heard_in_every_spelling():
    said = changed(Policy(), {"patience": "1m30s", "still-budget": 7, "agreeing-looks": "3", "learned_factor": "2"})
    assert (said.patience_s, said.still_budget_s, said.agreeing_looks, said.learned_factor) == (90.0, 7.0, 3, 2.0)


@pytest.fixture
def recording(tmp_path):
    job = Job()
    job.pass_time(30)
    job.stand(60)
    job.pass_time(60)
    job.over()
    path = tmp_path / "recording.jsonl"
    path.write_bytes(b"".join(job.lines))
    return path


def test_the_command_says_what_other_settings_would_have_done(recording, capsys):
    assert call(["replay", str(recording)]) == 1
    told = capsys.readouterr().out
    assert "settings: as recorded" in told
    assert "compared" not in told
    assert call(["replay", str(recording), "--patience", "20s"]) == 2
    told = capsys.readouterr().out
    assert "patience_s 20 (recorded: 180)" in told
    assert "first verdict: at +5" in told
    assert "would have been ended" in told
    assert call(["replay", str(recording), "--patience", "20s", "--policy", "observe"]) == 1


def test_the_command_reads_gzip_and_job_directories_and_gives_one_document(recording, tmp_path, capsys):
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(recording.read_bytes()))
    documents = []
    for path in (recording, packed, recording.parent):
        assert call(["replay", str(path), "--set", "patience=20s", "--json"]) == 2
        documents.append(capsys.readouterr().out)
    assert documents[0] == documents[1] == documents[2]
    told = json.loads(documents[0])
    assert told["ended_healthy"] == [0]
    assert told["changed"] == {"patience_s": {"recorded": 180.0, "now": 20.0}}


@pytest.mark.parametrize(
    ("words", "code", "help_words"),
    [
        (["--set", "patience"], 64, "Write --set KEY=VALUE"),
        (["--set", "patient=3"], 64, "Did you mean patience_s"),
        (["--patience", "20"], 64, "Write a number with its unit"),
    ],
)
def test_wrong_words_say_what_to_do(recording, capsys, words, code, help_words):
    assert call(["replay", str(recording), *words]) == code
    assert help_words in capsys.readouterr().err


def test_a_file_that_is_not_there_is_said(tmp_path, capsys):
    assert call(["replay", str(tmp_path / "none.jsonl")]) == 65
    said = capsys.readouterr().err
    assert "recording.jsonl" in said
    assert "run --record" in said
    spoiled = Path(tmp_path / "spoiled.gz")
    spoiled.write_bytes(b"\x1f\x8b nothing")
    assert call(["replay", str(spoiled)]) == 65


RAISED = Diagnosis(
    verdict="crash", cause="user_exception", culprit_ranks=(0,), certainty=Certainty.PROVED, sentence="rank 0 raised ValueError"
)


def test_a_crash_is_told_with_its_recovery_whatever_the_patience():
    job = Job()
    job.pass_time(30)
    job.write(CrashFound(at_s=job.at_s, onset_s=job.at_s - 0.4, diagnosis=RAISED))
    job.over()
    for patience in (1, 600):
        told = played(job, patience_s=patience)
        assert [entry.kind for entry in told.entries][1:4] == ["alert", "verdict", "action"]
        assert told.entries[2].culprit_ranks == (0,)
        assert told.entries[2].onset_s == 29.6


def test_a_crash_after_an_alert_is_told_as_its_outcome():
    job = Job()
    job.pass_time(30)
    job.stand(20)
    echo = msgspec.structs.replace(RAISED, cause="collateral", culprit_ranks=None, victim_ranks=(0,), sentence="only echoes")
    job.write(CrashFound(at_s=job.at_s, onset_s=job.at_s, diagnosis=echo))
    job.over()
    told = played(job)
    verdict = next(entry for entry in told.entries if entry.kind == "verdict")
    assert (verdict.what, verdict.culprit_ranks) == ("crash / rank_blocked (supported)", (1,))
    assert kinds(told).count("alert") == 1


def test_the_third_equal_failure_stops_the_job_in_a_replay_as_well():
    job = Job()
    for attempt in range(3):
        job.ranks = [msgspec.structs.replace(rank, step=0) for rank in job.ranks]
        job.tell(AttemptBegan(at_s=job.at_s, attempt=attempt, world_size=2))
        job.pass_time(30)
        job.write(CrashFound(at_s=job.at_s, onset_s=job.at_s, diagnosis=msgspec.structs.replace(RAISED, place="forward (train.py:3)")))
        job.write(AttemptOver(at_s=job.at_s, attempt=attempt, ordered=False, by_us=False))
    assert [entry.what for entry in played(job).entries if entry.kind == "action"][-1] == "the job would be ended"


def test_a_verdict_under_observe_ends_nobody():
    job = Job(acts=False)
    job.pass_time(10)
    job.stand(300)
    told = played(job)
    assert any(isinstance(finding, Judged) for _, finding in told.findings)
    assert "action" not in kinds(told)


DATA = Path(__file__).parents[1] / "data" / "replay"


def recorded(name):
    return tuple(read_tape((DATA / name).read_bytes().splitlines()))


def test_a_real_recording_gives_what_its_agent_told_then():
    told = replay(recorded("stall_of_22_s.jsonl"))
    events = [json.loads(line) for line in (DATA / "stall_of_22_s_events.jsonl").read_text().splitlines()]
    entries = [entry for entry in told.entries if entry.kind in {"alert", "verdict", "incident_closed"}]
    assert told.as_said
    assert [entry.kind for entry in entries] == [event["kind"] for event in events]
    assert [entry.sentence for entry in entries[:2]] == [event["sentence"] for event in events[:2]]
    began = recorded("stall_of_22_s.jsonl")[0]
    for entry, event in zip(entries, events, strict=True):
        assert abs(began.unix_s + entry.at_s - event["at_unix_s"]) <= 0.5
    assert any("--policy recover" in line for line in conclusions(told))


def test_a_real_silence_that_ended_by_itself_shows_what_patience_is_right():
    items = recorded("stall_of_22_s.jsonl")
    hasty = replay(items, acts=True)
    assert [ending.attempt for ending in harmful(hasty.endings)] == [0]
    patient = replay(items, changed(Policy(), {"patience": "60s"}), acts=True)
    assert (patient.endings, "verdict" in kinds(patient)) == ((), False)


@pytest.mark.parametrize("patience", ["1s", "20s", "180s", "1h"])
def test_a_real_training_that_went_well_has_no_findings_under_any_patience(patience):
    told = replay(recorded("f17_50.jsonl"), changed(Policy(), {"patience": patience}))
    assert (told.findings, told.world_size) == ((), 4)
    assert 60 <= told.seconds <= 100


@pytest.mark.parametrize("name", ["stall_of_22_s.jsonl", "f17_50.jsonl"])
def test_a_real_recording_is_written_again_byte_for_byte(name):
    writer = TapeWriter()
    content = (DATA / name).read_bytes()
    assert b"".join(writer.line(item) for item in read_tape(content.splitlines())) == content
