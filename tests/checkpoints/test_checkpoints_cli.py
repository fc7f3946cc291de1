import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from shelves import SHELVES, Shelf, put

from rankpatrol.cli.checkpoints import checkpoints
from rankpatrol.core.errors import BadInput, UsageProblem


@pytest.fixture
def shelf(saved: Path, tmp_path: Path) -> Path:
    """A good step 1 and a cut step 2."""
    good = (saved / "state_120.pt").read_bytes()
    (tmp_path / "step_1.pt").write_bytes(good)
    (tmp_path / "step_2.pt").write_bytes(good[:3000])
    return tmp_path


def run(*words: object) -> Result:
    return CliRunner().invoke(checkpoints, [str(word) for word in words])


def test_latest_prints_the_path_alone_and_warns_of_what_it_passed_over(shelf: Path) -> None:
    result = run("latest", shelf)
    assert result.exit_code == 1
    assert result.stdout == f"{shelf}/step_1.pt\n"
    assert "step_2.pt ends at byte 3000" in result.stderr


def test_latest_is_healthy_when_the_newest_is_good(shelf: Path) -> None:
    (shelf / "step_2.pt").unlink()
    assert run("latest", shelf).exit_code == 0


def test_latest_is_critical_when_none_is_good(shelf: Path) -> None:
    (shelf / "step_1.pt").unlink()
    result = run("latest", shelf)
    assert (result.exit_code, result.stdout) == (2, "")
    (shelf / "step_2.pt").unlink()
    result = run("latest", shelf)
    assert result.exit_code == 2
    assert "holds no checkpoint files" in result.stderr


def test_latest_json_is_one_document(shelf: Path) -> None:
    document = json.loads(run("latest", shelf, "--json").stdout)
    assert document["newest_good"]["step"] == 1
    assert document["rejected"][0]["verdict"] == "incomplete"


def test_verify_tells_named_files_and_directories_apart(saved: Path, shelf: Path) -> None:
    assert run("verify", shelf / "step_1.pt", saved / "without_checksums.pt").exit_code == 0
    assert run("verify", saved / "legacy.pt").exit_code == 0
    assert run("verify", shelf).exit_code == 1
    assert run("verify", saved / "foreign.pt").exit_code == 3
    assert run("verify", saved / "foreign.pt", shelf / "step_2.pt").exit_code == 2


def test_verify_json_holds_every_report(shelf: Path) -> None:
    result = run("verify", shelf, "--json")
    assert [report["verdict"] for report in json.loads(result.stdout)["reports"]] == ["incomplete", "ok"]


def test_verify_prints_verdict_step_and_sentence(shelf: Path) -> None:
    lines = run("verify", shelf / "step_2.pt").stdout.splitlines()
    assert lines[0] == f"incomplete: {shelf}/step_2.pt (step 2)"
    assert "ends at byte 3000" in lines[1]


def test_a_path_that_is_not_there_is_bad_input(shelf: Path) -> None:
    for command in ("verify", "latest"):
        assert isinstance(run(command, shelf / "absent").exception, BadInput)


def test_a_name_that_is_no_text_is_still_reported(shelf: Path) -> None:
    odd = bytes(shelf) + b"/step_3_\xff.pt"
    Path(os.fsdecode(odd)).touch()
    document = json.loads(run("verify", shelf, "--json").stdout)
    assert document["reports"][0]["path"].endswith("step_3_\\xff.pt")


@pytest.mark.parametrize("layout", SHELVES, ids=lambda layout: layout.name)
def test_a_whole_set_and_its_shelf_are_healthy_and_a_damaged_set_is_critical(layout: Shelf, tmp_path: Path) -> None:
    folder = put(layout, tmp_path)
    assert run("verify", folder).exit_code == 0
    assert run("verify", folder / layout.newer).exit_code == 0
    assert run("latest", folder).stdout == f"{folder / layout.newer}\n"
    os.truncate(folder / layout.newer / layout.needed[0], 100)
    assert run("verify", folder / layout.newer).exit_code == 2
    assert run("verify", folder).exit_code == 1
    result = run("latest", folder)
    assert (result.exit_code, result.stdout) == (1, f"{folder / layout.older}\n")
    assert "2 steps are lost" in result.stderr


def test_options_change_how_closely_files_are_read(saved: Path, tmp_path: Path) -> None:
    path = saved / "state_120.pt"
    assert "its content was not read" in run("verify", path, "--structure").stdout
    assert "every checksum right" in run("verify", path, "--most-per-second", "500M", "--at-once", 2).stdout
    ledger = tmp_path / "kept" / "ledger.json"
    run("verify", path, "--ledger", ledger)
    assert str(path) in ledger.read_text()
    assert run("verify", path, "--numbers").exit_code == 0


@pytest.mark.parametrize("rate", ["fast", "500", "0M", "-1G"])
def test_a_rate_without_a_unit_is_wrong_usage(saved: Path, rate: str) -> None:
    assert isinstance(run("verify", saved / "state_120.pt", f"--most-per-second={rate}").exception, UsageProblem)


def test_a_ledger_that_cannot_be_written_is_said_and_changes_no_verdict(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("verify", saved / "state_120.pt", "--ledger", tmp_path / "file" / "ledger.json")
    assert result.exit_code == 0
    assert "could not be remembered" in result.stderr
    assert f"({tmp_path}/file/ledger.json)" in result.stderr
