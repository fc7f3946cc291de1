"""What the commands say to wrong words and bad input, and what `status` and `why` tell of a recorded job."""

import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from rankpatrol import __version__
from rankpatrol.cli.main import call

ALERT = {
    "at_unix_s": 1.8e9,
    "kind": "alert",
    "attempt": 0,
    "incident": 1,
    "cause": "rank_blocked",
    "suspect_ranks": [1],
    "certainty": "supported",
    "sentence": "rank 1 sleeps",
}
DIAGNOSIS = {"sentence": "rank 1 sleeps", "for": ["two looks agree"], "against": [], "suggested": ["Look at train.py:20"]}
RANKS = [{"rank": 0, "node": "n1", "pid": 7, "exit_status": None, "still_for_s": 12.0, "step": 20, "at": "waits in all_reduce"}]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job directory as the agent leaves it in mid-incident."""
    folder = tmp_path / "rankpatrol-runs" / "train"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (folder / "job.json").write_text("{}")
    (folder / "events.jsonl").write_text(json.dumps(ALERT) + "\n")
    incident = {"incident": 1, "stage": "alerted", "diagnosis": DIAGNOSIS}
    state = {"at_unix_s": time.time(), "job": "train", "policy": "recover", "ended": None, "attempt": 0, "step": 20, "ranks": RANKS}
    (folder / "state.json").write_text(json.dumps({**state, "incident": incident}))
    return folder


def edit(job, **changes):
    state = json.loads((job / "state.json").read_text())
    (job / "state.json").write_text(json.dumps({**state, **changes}))


def test_a_job_of_which_ranks_are_not_seen_is_unknown_and_not_healthy(job, capsys):
    edit(job, incident=None, world_size=4)
    assert call(["status"]) == 3
    assert "3 of 4 ranks are not seen, so nothing is judged" in capsys.readouterr().out
    edit(job, world_size=1, step=None)
    assert call(["status"]) == 0
    assert "step" not in capsys.readouterr().out.splitlines()[0]


def test_a_job_whose_ranks_start_past_us_says_how_they_are_seen(job, capsys):
    (job / "state.json").unlink()
    assert call(["status"]) == 65
    assert "within seconds of the ranks' start; look again" in capsys.readouterr().err
    (job / "job.json").write_text(json.dumps({"started_unix_s": time.time() - 300}))
    assert call(["status"]) == 65
    told = capsys.readouterr().err
    assert "no rank was seen in 5 min 0 s" in told
    assert "where torchrun or `rankpatrol shim` starts it" in told
    assert "look again" not in told


def test_a_job_that_ended_without_a_rank_says_that_nothing_was_watched(job, capsys):
    edit(job, ended="finished", attempt=None, step=None, ranks=[], incident=None)
    assert call(["status"]) == 0
    out = capsys.readouterr().out
    assert "train · ended: finished · no attempt · policy" in out
    assert "no rank was seen, so nothing was watched. A rank is seen where torchrun or `rankpatrol shim` starts it." in out


def test_no_rank_of_a_job_that_is_over_runs_or_waits(job, capsys):
    """Nobody tells how the ranks of a watched job end."""
    edit(job, ended="ended", incident=None, ranks=[*RANKS, {**RANKS[0], "rank": 1, "at": None}, {**RANKS[0], "rank": 2, "exit_status": 1}])
    call(["status"])
    out = capsys.readouterr().out
    assert "train · ended · attempt 0" in out
    assert out.count("ended, nobody told how") == 2
    assert "ended with 1" in out
    assert "waits in all_reduce" not in out
    assert " runs" not in out
    assert "12 s" not in out


def test_without_a_command_the_help_is_shown_once(capsys):
    assert call([]) == 64
    shown = capsys.readouterr().err
    assert shown.count("Usage:") == 1
    assert "Error" not in shown


def test_version_is_told(capsys):
    assert call(["--version"]) == 0
    assert capsys.readouterr().out == f"rankpatrol {__version__}\n"


@pytest.mark.parametrize(
    ("words", "code", "help_words"),
    [
        (["nonsense"], 64, "No such command"),
        (["run"], 64, "Write it last: rankpatrol run torchrun"),
        (["run", "--"], 64, "Write it last: rankpatrol run torchrun"),
        (["watch", "--pid", "4194303"], 65, "--all finds all jobs of this node"),
        (["end", "--job", "7", "--requeue", "--checkpoints", "nowhere"], 65, "Nothing was touched. Name the folder"),
        (["run", "--patience", "5", "true"], 64, "Write a number with its unit"),
        (["run", "--policy", "kill", "true"], 64, "observe"),
        (["run", "python", "train.py", "--resume", "{checkpoint}"], 64, "Add --checkpoints DIR"),
        (["run", "--checkpoints", __file__, "true"], 65, "is a file"),
        (["run", "no-such-command-here"], 127, "Check the spelling"),
        (["status", "/nowhere"], 65, "is not a job directory"),
        (["bundle", "verify", "/nowhere"], 65, "/nowhere"),
        (["checkpoints", "latest", "/nowhere"], 65, "/nowhere"),
    ],
)
def test_wrong_words_and_bad_input_get_their_code_and_a_way_out(capsys, tmp_path, monkeypatch, words, code, help_words):
    monkeypatch.chdir(tmp_path)
    assert call(words) == code
    assert help_words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_missing_torchrun_says_where_it_comes_from(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call(["run", "torchrun", "train.py"]) == 127
    assert "Activate the environment that has torch" in capsys.readouterr().err


def test_status_shows_every_rank_and_the_open_incident(job, capsys):
    assert call(["status"]) == 1
    out = capsys.readouterr().out
    assert "incident 1 (alerted): rank 1 sleeps" in out
    assert "waits in all_reduce" in out


def test_status_audits_the_time_outs_of_process_groups(job, capsys):
    short = {"name": "default_pg", "groups": 1, "backend": "gloo", "ranks": 4, "timeout_s": 60.0}
    long = {"name": "7:tensor", "groups": 3, "backend": "nccl", "ranks": 2, "timeout_s": 600.0}
    edit(job, patience_s=180.0, groups=[short, long])
    call(["status"])
    out = capsys.readouterr().out
    assert "process group default_pg (gloo, 4 ranks): time-out 60 s, shorter than patience (180 s)" in out
    assert "process group 7:tensor and 2 more like it (nccl, 2 ranks): time-out 10 min 0 s, longer than patience" in out


def test_status_is_one_json_document(job, capsys):
    assert call(["status", str(job), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ranks"] == RANKS


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"incident": None}, 0),
        ({"incident": None, "asides": [{"incident": 2, "diagnosis": DIAGNOSIS}]}, 1),
        ({"incident": {"incident": 1, "stage": "sealed", "diagnosis": DIAGNOSIS}}, 2),
        ({"at_unix_s": 1.0}, 3),
        ({"ended": "finished"}, 0),
        ({"ended": "failed"}, 2),
    ],
)
def test_the_exit_code_of_status_is_the_jobs_health(job, capsys, changes, code):
    edit(job, **changes)
    assert call(["status", str(job)]) == code


def test_why_tells_the_last_incident_with_for_and_next(job, capsys):
    assert call(["why", str(job)]) == 1
    out = capsys.readouterr().out
    assert "alert / rank_blocked (supported): rank 1 sleeps" in out
    assert "two looks agree" in out
    assert "Look at train.py:20" in out


def test_why_of_a_quiet_job_says_so(job, capsys):
    (job / "events.jsonl").write_text("")
    assert call(["why", str(job)]) == 0
    assert "Nothing was suspected" in capsys.readouterr().out


def test_a_state_that_was_cut_is_bad_input_not_a_crash(job, capsys):
    (job / "state.json").write_text('{"at_unix_s": 1')
    assert call(["status", str(job)]) == 65


def test_a_reader_that_has_had_enough_is_no_warning(job):
    words = [sys.executable, "-m", "rankpatrol", "config", "show"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as told:
        told.stdout.close()
        assert told.wait(20) == 0
        assert told.stderr.read() == b""


def test_no_job_here_says_how_to_start_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["status"]) == 65
    assert "rankpatrol run torchrun" in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_checkpoints_that_cannot_be_read_are_refused_before_anything_starts(tmp_path):
    shut = tmp_path / "ckpt"
    shut.mkdir(mode=0o700)
    home = tmp_path / "home"
    home.mkdir(mode=0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder != folder.parent and folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    # All is imported before the user changes: this Python may lie where only its owner can read.
    script = "import os, sys; from rankpatrol.cli.main import call; import rankpatrol.cli.run; "
    script += f"os.setresuid(65534, 65534, 65534); os.chdir({str(home)!r}); "
    script += f"sys.exit(call(['run', '--checkpoints', {str(shut)!r}, 'true']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=20, check=False)
    assert done.returncode == 77, done.stderr
    assert b"cannot be read" in done.stderr
    shutil.rmtree(home)
