"""`rankpatrol config show`, and settings as `rankpatrol run` takes them."""

import json
import os
import subprocess
import sys
import tomllib

import pytest

from rankpatrol.cli.main import call


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setattr("rankpatrol.config.resolve.SYSTEM_FILE", tmp_path / "system.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in [name for name in os.environ if name.startswith("RANKPATROL_")]:
        monkeypatch.delenv(name)


def users(tmp_path, text):
    folder = tmp_path / "xdg" / "rankpatrol"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(text)


def test_what_is_shown_is_a_file_that_can_be_given_back(tmp_path, capsys):
    users(tmp_path, 'policy = "observe"')
    assert call(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert tomllib.loads(shown)["policy"] == "observe"
    (tmp_path / "again.toml").write_text(shown)
    assert call(["config", "show", "--config", str(tmp_path / "again.toml")]) == 0
    assert capsys.readouterr().out == shown


def test_the_origin_names_the_place_and_what_it_overrules(tmp_path, monkeypatch, capsys):
    users(tmp_path, 'patience = "10m"')
    monkeypatch.setenv("RANKPATROL_PATIENCE", "5m")
    monkeypatch.setenv("RANKPATROL_POLCY", "ask")
    assert call(["config", "show", "--origin"]) == 0
    seen = capsys.readouterr()
    assert f'patience = "5m"  # environment, above user file {tmp_path}' in seen.out
    assert "RANKPATROL_POLCY is no setting: RANKPATROL_POLICY is" in seen.err


def test_json_is_one_document(tmp_path, capsys):
    assert call(["config", "show", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"]["patience"]["value"] == 180.0
    assert document["settings"]["patience"]["origin"] == "default"


def test_run_takes_a_file_and_the_command_line_wins(tmp_path):
    (tmp_path / "site.toml").write_text('policy = "observe"\npatience = "7m"\nmax-restarts = 1\nfailures-per-day = 5\n')
    env = {**os.environ, "TMPDIR": "/tmp"}
    words = [
        sys.executable,
        "-m",
        "rankpatrol",
        "run",
        "--job-dir",
        "job",
        "--config",
        "site.toml",
        "--patience",
        "9m",
        "--first-pause",
        "30s",
    ]
    subprocess.run([*words, "sh", "-c", 'test "$PET_MAX_RESTARTS" = 1'], cwd=tmp_path, env=env, check=True, timeout=15)
    spec = json.loads((tmp_path / "job" / "job.json").read_text())
    assert (spec["policy"], spec["patience_s"], spec["probe"]) == ("observe", 540.0, True)
    assert spec["budget"] == {"per_hour": 10, "per_day": 5, "at_once": 2, "first_pause_s": 30.0, "longest_pause_s": 300.0}


def test_a_bad_file_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text('polcy = "observe"')
    assert call(["run", "--config", "site.toml", "true"]) == 65
    assert "Did you mean policy?" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["site.toml"]


def test_job_directories_are_made_and_found_where_the_setting_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKPATROL_JOBS_DIR", "elsewhere")
    assert call(["status"]) == 65
    (tmp_path / "elsewhere" / "train").mkdir(parents=True)
    (tmp_path / "elsewhere" / "train" / "job.json").write_text("{}")
    capsys.readouterr()
    assert call(["status"]) == 65
    assert "has no state yet" in capsys.readouterr().err
