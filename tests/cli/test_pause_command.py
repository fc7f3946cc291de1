"""`rankpatrol pause`, `unpause` and `act` say what they did, and refuse with the way out."""

import json
import os
import time
from pathlib import Path

import pytest

from rankpatrol.cli.main import call
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.system.process import identify


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def job(tmp_path):
    """A running job's two directories, in mid-question."""
    run_dir = RunDir.create()
    run_dir.write("launcher.json", identify(os.getpid()))
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps({"run_dir": str(run_dir.path)}))
    incident = {"incident": 1, "attempt": 0, "stage": "sealed", "waits_for": "answer", "diagnosis": {"verdict": "hang", "sentence": "s"}}
    (folder / "state.json").write_text(json.dumps({"at_unix_s": time.time(), "ended": None, "incident": incident}))
    yield folder
    run_dir.remove()


def run_dir_in(folder):
    return RunDir(Path(json.loads((folder / "job.json").read_text())["run_dir"]))


def edit(folder, **changes):
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps({**state, **changes}))


def test_a_machine_is_paused_once_and_unpaused_once(capsys):
    assert call(["pause", "--why", "maintenance"]) == 0
    assert "nobody acts until: rankpatrol unpause" in capsys.readouterr().out
    assert call(["pause"]) == 0
    assert "paused already, for" in capsys.readouterr().out
    assert call(["unpause"]) == 0
    assert "acted upon again" in capsys.readouterr().out
    assert call(["unpause", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lifted": None, "still_paused": None}


def spec_of(name):
    return JobSpec(job=name, job_dir="/hangs", command=("t",), policy="ask", patience_s=1, checkpoints=None, started_unix_s=0.0)


def test_a_job_is_paused_by_its_id_while_its_job_directory_hangs(job, capsys):
    run_dir = run_dir_in(job)
    run_dir.write("job.json", spec_of("train-7"))
    assert call(["pause", "train-7"]) == 0
    assert (run_dir.path / "paused.json").exists()


def test_an_id_of_a_job_that_has_ended_is_nobodys(job, capsys):
    run_dir_in(job).write("job.json", spec_of("train-7"))
    (run_dir_in(job).path / "launcher.json").unlink()
    assert call(["pause", "train-7"]) == 65


def test_of_two_jobs_with_one_id_none_is_taken(job, capsys):
    second = RunDir.create()
    second.write("launcher.json", identify(os.getpid()))
    for run_dir in (run_dir_in(job), second):
        run_dir.write("job.json", spec_of("train-7"))
    assert call(["pause", "train-7"]) == 65
    assert "2 jobs have the id 'train-7'" in capsys.readouterr().err
    second.remove()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder away")
def test_what_another_user_put_there_under_our_jobs_name_is_not_taken_for_it(job, capsys):
    run_dir = run_dir_in(job)
    run_dir.write("job.json", spec_of("train-7"))
    os.chown(run_dir.path, 65534, 65534)
    assert call(["pause", "train-7"]) == 65
    assert "no job 'train-7' runs here" in capsys.readouterr().err


def test_unpausing_a_job_tells_of_a_pause_of_all(job, capsys):
    call(["pause"])
    call(["pause", str(job)])
    capsys.readouterr()
    assert call(["unpause", str(job)]) == 0
    assert "all jobs of this user are still paused" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["pause"], ["unpause"], ["act", "1", "--yes"]])
def test_a_job_that_is_over_or_elsewhere_is_told_apart_from_one_that_listens(job, capsys, command):
    (job / "job.json").write_text(json.dumps({"run_dir": "/tmp/rankpatrol-of-another-machine"}))
    assert call([command[0], str(job), *command[1:]]) == 65
    assert "does not run here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"incident": None}, "no incident is open any more"),
        ({"ended": "failed"}, "the job has ended (failed)"),
        ({"ended": "ended"}, "the job has ended: nothing can be done"),
        ({"at_unix_s": 1.0}, "no agent has reported"),
        ({"incident": {"incident": 2, "stage": "sealed", "waits_for": "answer"}}, "incident 2 is open now, not 1"),
        ({"incident": {"incident": 1, "stage": "alerted"}}, "is alerted and asks nothing"),
    ],
)
def test_an_answer_without_a_question_is_refused_and_leaves_nothing(job, capsys, changes, said):
    edit(job, **changes)
    assert call(["act", str(job), "1", "--yes"]) == 65
    assert said in capsys.readouterr().err
    assert not (run_dir_in(job).path / "answer.json").exists()


def test_without_yes_an_answer_says_what_it_would_do(job, capsys):
    assert call(["act", str(job), "1", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["would"] == "end attempt 0 and start the next one"


def test_no_home_for_the_switch_is_said(monkeypatch, capsys):
    monkeypatch.delenv("RANKPATROL_STATE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert call(["pause"]) == 64
    assert "RANKPATROL_STATE_DIR" in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_pausing_another_users_job_needs_that_user(job, capsys):
    os.seteuid(65534)
    try:
        code = call(["pause", str(job)])
    finally:
        os.seteuid(0)
    assert code == 77
    assert "Run it as the user who started the job" in capsys.readouterr().err


def test_status_tells_of_a_pause_of_all_jobs_that_no_agent_has_told_of(job, capsys):
    call(["pause", "--why", "maintenance"])
    capsys.readouterr()
    for ended in (None, "finished"):
        edit(job, ended=ended)
        call(["status", str(job)])
        said = capsys.readouterr().out
        assert "all jobs of this user on this machine are paused since 20" in said
        assert f"@{os.uname().nodename} (maintenance). To end it: rankpatrol unpause" in said
    call(["status", str(job), "--json"])
    assert json.loads(capsys.readouterr().out)["machine_paused"]["why"] == "maintenance"
    edit(job, paused={"since_unix_s": 1.0, "by": "ada", "scope": "machine"}, ended=None)
    call(["status", str(job)])
    assert "all jobs of this user" not in capsys.readouterr().out


def test_without_a_job_status_still_tells_of_the_pause(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call(["pause"])
    assert call(["status"]) == 65
    assert "are paused since" in capsys.readouterr().err
    call(["unpause"])
    assert call(["status"]) == 65
    assert "paused" not in capsys.readouterr().err
