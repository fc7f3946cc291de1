"""`rankpatrol bundle` says whether evidence is whole, and tells its story in a plain terminal."""

import json
from pathlib import Path

import msgspec
import pytest
from evidence_scene import incident_ref, still_clock, stuck_findings

from rankpatrol.cli.main import call
from rankpatrol.evidence.bundle import IncidentRef
from rankpatrol.evidence.capture import Findings, seal
from rankpatrol.system.clock import Clock

of = pytest.fixture(incident_ref)
clock = pytest.fixture(still_clock)
findings = pytest.fixture(stuck_findings)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def sealed(tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock) -> Path:
    seal(tmp_path / "1", of, findings, clock)
    return tmp_path / "1"


def test_whole_bundle_passes(sealed: Path, capsys: Captured) -> None:
    assert call(["bundle", "verify", str(sealed)]) == 0
    assert "files are as they were sealed" in capsys.readouterr().out


def test_changed_bundle_is_critical_and_each_problem_is_named(sealed: Path, capsys: Captured) -> None:
    (sealed / "diagnosis.json").write_text("{}")
    (sealed / "extra").write_text("")
    assert call(["bundle", "verify", str(sealed)]) == 2
    said = capsys.readouterr().out
    assert "diagnosis.json was changed after the bundle was sealed: its hash differs" in said
    assert "extra is not listed in the manifest" in said


def test_verify_as_json_is_one_document(sealed: Path, capsys: Captured) -> None:
    (sealed / "extra").write_text("")
    assert call(["bundle", "verify", "--json", str(sealed)]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert said["problems"] == ["extra is not listed in the manifest"]


@pytest.mark.parametrize("command", ["verify", "show"])
def test_what_is_no_bundle_is_bad_input(tmp_path: Path, capsys: Captured, command: str) -> None:
    assert call(["bundle", command, str(tmp_path)]) == 65
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "has no manifest.json" in captured.err


@pytest.mark.parametrize("command", ["verify", "show"])
def test_without_a_path_it_is_the_last_one_of_the_newest_job_here(
    command: str, tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["bundle", command]) == 65
    assert "there is no job here" in capsys.readouterr().err
    job = tmp_path / "rankpatrol-runs" / "train"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    assert call(["bundle", command]) == 65
    assert "rankpatrol-runs/train, has no sealed evidence" in capsys.readouterr().err
    for number in ("9", "10"):
        seal(job / "incidents" / number, of, findings, clock)
    assert call(["bundle", command]) == 0
    assert str(Path("rankpatrol-runs", "train", "incidents", "10")) in capsys.readouterr().out


def test_story_is_plain_text_with_reasons_and_what_was_captured(sealed: Path, findings: Findings, capsys: Captured) -> None:
    assert call(["bundle", "show", str(sealed)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("hang / data_loader_worker_stuck (supported): rank 3 waits for loader process 23701")
    for line in (*findings.diagnosis.reasons_for, *findings.diagnosis.reasons_against, *findings.diagnosis.suggested):
        assert line in said
    assert "rank 3 on gpu-node-17, process 23630: stack, proc, log_tail, native, children" in said
    assert "machine: no gpus: no nvidia-smi on PATH" in said
    assert "touched: rank 3: native stack once, 0.3 s" in said
    assert "\x1b" not in said


def test_story_of_a_changed_bundle_begins_with_the_warning(sealed: Path, capsys: Captured) -> None:
    (sealed / "report.html").write_text("")
    assert call(["bundle", "show", str(sealed)]) == 2
    said = capsys.readouterr().out
    assert said.startswith("This bundle is not as it was sealed:\n  report.html was changed")
    assert "rank 3 waits for loader process 23701" in said


def test_story_as_json_is_one_document(sealed: Path, capsys: Captured) -> None:
    assert call(["bundle", "show", "--json", str(sealed)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) == {"manifest", "diagnosis", "problems"}
    assert said["manifest"]["job"] == "8123"
    assert said["diagnosis"]["culprit_ranks"] == [3]
    assert said["problems"] == []


def test_bundle_without_manifest_sense_or_diagnosis_still_answers(sealed: Path, capsys: Captured) -> None:
    (sealed / "manifest.json").write_text("{")
    (sealed / "diagnosis.json").unlink()
    assert call(["bundle", "show", "--json", str(sealed)]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["manifest"] is None
    assert said["diagnosis"] is None
    assert call(["bundle", "show", str(sealed)]) == 2
    assert "No diagnosis:" in capsys.readouterr().out


def test_terminal_sequences_and_markup_in_a_sentence_are_shown_not_obeyed(
    tmp_path: Path, of: IncidentRef, findings: Findings, clock: Clock, capsys: Captured
) -> None:
    sentence = "file [bold]\x1b[2J\r.tar"
    diagnosis = msgspec.structs.replace(findings.diagnosis, sentence=sentence)
    seal(tmp_path / "1", of, msgspec.structs.replace(findings, diagnosis=diagnosis), clock)
    assert call(["bundle", "show", str(tmp_path / "1")]) == 0
    assert "file [bold]\ufffd[2J\ufffd.tar" in capsys.readouterr().out
