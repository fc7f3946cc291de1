"""The command itself; its runs are stood in for, they have tests of their own."""

import msgspec
import pytest

import rankpatrol.drill.__main__ as command
from rankpatrol.cli.main import call
from rankpatrol.drill.score import not_run


@pytest.fixture
def runs(monkeypatch):
    """Every run is noted, and fails at once."""
    made = []

    def run_one(drawn, _settings, out):
        made.append((drawn.fault_id, drawn.number, drawn.seed))
        return not_run(drawn.fault_id, drawn.number, drawn.seed, folder=str(out), why="not run")

    monkeypatch.setattr(command, "_run_one", run_one)
    return made


def drill(*words):
    with pytest.raises(SystemExit) as left:
        call(["drill", *words])
    return left.value.code


def test_a_drill_that_was_stopped_goes_on_where_it_was(runs, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    assert drill("F5", "--runs", "2", *out) == 1
    assert drill("F5", "F8", "--runs", "3", *out) == 1
    assert [(fault, number) for fault, number, _ in runs] == [("F5", 0), ("F5", 1), ("F8", 0), ("F8", 1), ("F5", 2), ("F8", 2)]
    assert len({seed.split(":")[0] for _, _, seed in runs}) == 1
    assert len(msgspec.json.decode((tmp_path / "out" / "scorecard.json").read_bytes())["runs"]) == 6


def test_a_folder_with_other_settings_is_refused(runs, tmp_path, capsys):
    drill("F5", "--out", str(tmp_path))
    assert drill("F5", "--ranks", "8", "--out", str(tmp_path)) == 64
    assert "holds a drill with other settings" in capsys.readouterr().err
    assert len(runs) == 1


def test_a_bad_patience_leaves_no_folder_behind(tmp_path, capsys):
    assert drill("F5", "--patience", "soon", "--out", str(tmp_path / "out")) == 64
    assert "is not a duration" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_row_says_which_there_are(capsys, tmp_path):
    assert drill("F99", "--out", str(tmp_path)) == 64
    assert "Choose from: F1" in capsys.readouterr().err
