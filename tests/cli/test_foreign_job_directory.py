"""A job directory may be edited, cut, of another version or laid out to harm: each command says what is wrong, and never waits for it."""

import json
import os
import signal
import time

import pytest

from rankpatrol.cli.main import call
from rankpatrol.launch.rundir import RunDir

ALERT = {
    "at_unix_s": 100.0,
    "kind": "alert",
    "attempt": 0,
    "incident": 1,
    "cause": "spin",
    "certainty": "supported",
    "sentence": "it spins",
}
STATE = {"at_unix_s": 100.0, "job": "train", "ended": None, "incident": None}
CURSOR_UP = "\x1b[2A\x9b2K\u202e"


@pytest.fixture(autouse=True)
def _never_for_ever(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def job(tmp_path):
    run_dir = RunDir.create()
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"run_dir": str(run_dir.path)}))
    (folder / "state.json").write_text(json.dumps(STATE))
    (folder / "events.jsonl").write_text(json.dumps(ALERT) + "\n")
    yield folder
    run_dir.remove()


def run(command, folder):
    name, *options = command
    return call([name, str(folder), *(each for each in options if each != "JOB")])


def fifo(path):
    os.mkfifo(path)


def loop(path):
    path.symlink_to(path.name)


def device(path):
    path.symlink_to("/dev/zero")


def deep(path):
    path.write_text('{"incident": ' + "[" * 200_000)


@pytest.mark.parametrize(
    "put", [fifo, loop, device, deep, os.mkdir, lambda path: path.write_bytes(b"\xff\xfe"), lambda path: path.write_text("[1]")]
)
@pytest.mark.parametrize("name", ["events.jsonl", "state.json", "job.json"])
@pytest.mark.parametrize("command", [("status",), ("why",), ("goodput",), ("act", "JOB", "1"), ("pause",)], ids=lambda command: command[0])
def test_what_is_no_plain_record_is_a_problem_said_in_a_line(job, capsys, command, name, put):
    (job / name).unlink()
    put(job / name)
    assert run(command, job) in {0, 1, 2, 3, 65}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("put", [fifo, loop, os.mkdir, deep])
def test_the_doctor_reads_no_run_directory_that_is_none(job, capsys, put):
    run_dir = RunDir(type(job)(json.loads((job / "job.json").read_text())["run_dir"]))
    (run_dir.path / "job.json").unlink()
    put(run_dir.path / "job.json")
    (run_dir.path / "claims" / "x.y.json").write_text("{}")
    assert call(["doctor", str(job)]) == 65
    (run_dir.path / "job.json").rmdir() if put is os.mkdir else (run_dir.path / "job.json").unlink()


def test_a_pipe_says_that_it_is_none(job, capsys):
    (job / "state.json").unlink()
    fifo(job / "state.json")
    assert call(["status", str(job)]) == 65
    assert "is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        {"at_unix_s": "noon"},
        {"at_unix_s": 1e300},
        {"at_unix_s": -1},
        {"ranks": {"0": 1}},
        {"ranks": [{"rank": "zero"}]},
        {"ranks": [{"rank": 10**400}]},
        {"incident": 7},
        {"incident": {"incident": 1}},
        {"incident": {"incident": 1, "stage": "sealed", "diagnosis": None}},
        {"paused": {"by": 1}},
        {"groups": [{}]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("command", [("status",), ("act", "JOB", "1")], ids=lambda command: command[0])
def test_a_state_of_other_types_is_refused_with_its_place(job, capsys, command, wrong):
    (job / "state.json").write_text(json.dumps({**STATE, **wrong}))
    assert run(command, job) == 65
    assert "state.json cannot be read" in capsys.readouterr().err
    assert call(["why", str(job)]) == 1


def test_a_pause_that_began_at_no_time_is_still_told(job, capsys):
    paused = {"since_unix_s": 1e300, "by": "ada"}
    (job / "state.json").write_text(json.dumps({**STATE, "at_unix_s": time.time(), "paused": paused}))
    assert call(["status", str(job)]) == 0
    assert "actions are paused since a time that is none by ada" in capsys.readouterr().out


@pytest.mark.parametrize(
    "spoiled",
    [
        "7",
        "null",
        '"verdict"',
        "[]",
        '{"incident": 1}',
        '{"kind": 3, "at_unix_s": 1.0, "incident": 1}',
        '{"kind": "verdict", "incident": 1}',
        '{"kind": "verdict", "at_unix_s": 1e300, "incident": 1}',
        '{"kind": "verdict", "at_unix_s": 101.0, "incident": [1]}',
        '{"kind": "verdict", "at_unix_s": 101.0, "incident": 1, "cause": {}}',
        '{"kind": "action", "at_unix_s": 101.0, "incident": 1, "done": "maybe"}',
        '{"kind": "bundle_sealed", "at_unix_s": 101.0, "incident": 1, "path": 7}',
        '{"kind": "verdict", "at_unix_s": 101.0, "incident": 1, "sentence": ',
    ],
)
def test_a_line_that_is_no_event_is_left_out_and_counted(job, capsys, spoiled):
    with (job / "events.jsonl").open("a") as events:
        events.write(spoiled + "\n")
    assert call(["why", str(job)]) == 1
    told = capsys.readouterr()
    assert "alert / spin (supported): it spins" in told.out
    # Only what speaks of an incident is looked at here.
    assert ("1 lines could not be read" in told.err) == ('"incident"' in spoiled)


def test_of_half_an_event_the_rest_is_told(job, capsys):
    with (job / "events.jsonl").open("a") as events:
        events.write('{"kind": "action", "at_unix_s": 101.0, "incident": 1}\n{"kind": "question", "at_unix_s": 101.0, "incident": 1}\n')
    assert call(["why", str(job)]) == 1
    assert "action ? (None): begun" in capsys.readouterr().out


def test_a_bundle_that_is_a_pipe_is_not_waited_for(job, tmp_path, capsys):
    fifo(tmp_path / "diagnosis.json")
    sealed = {"at_unix_s": 101.0, "kind": "bundle_sealed", "attempt": 0, "incident": 1, "path": str(tmp_path), "seconds": 1.0}
    with (job / "events.jsonl").open("a") as events:
        events.write(json.dumps(sealed) + "\n")
    assert call(["why", str(job)]) == 1
    assert "evidence sealed in 1.0 s" in capsys.readouterr().out


def test_no_foreign_word_steers_the_terminal(job, capsys):
    (job / "events.jsonl").write_text(json.dumps({**ALERT, "sentence": CURSOR_UP, "cause": CURSOR_UP}) + "\n")
    rank = {"rank": 0, "node": CURSOR_UP, "at": CURSOR_UP}
    group = {"name": CURSOR_UP, "ranks": 2, "timeout_s": 1.0}
    incident = {"incident": 1, "stage": "sealed", "diagnosis": {"sentence": CURSOR_UP, "for": [CURSOR_UP]}}
    named = {"job": CURSOR_UP, "ranks": [rank], "groups": [group], "incident": incident, "answer_with": CURSOR_UP}
    (job / "state.json").write_text(json.dumps({**STATE, **named, "paused": {"since_unix_s": 1.0, "by": CURSOR_UP, "why": CURSOR_UP}}))
    for command in (["status"], ["why"], ["goodput"], ["act", "JOB", "1"]):
        run(command, job)
        told = capsys.readouterr()
        assert not set("\x1b\x9b\u202e") & set(told.out + told.err), command


def test_errors_name_foreign_files_plainly(tmp_path, capsys):
    assert call(["status", str(tmp_path / "job\x1b[2A")]) == 65
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [("status",), ("why",), ("goodput",), ("doctor",), ("act", "JOB", "1"), ("pause",)], ids=lambda command: command[0]
)
def test_a_job_directory_that_is_a_loop_of_links_is_none(tmp_path, capsys, command):
    loop(tmp_path / "job")
    assert run(command, tmp_path / "job") == 65
