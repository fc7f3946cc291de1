"""`rankpatrol goodput` for people, for programs, as a picture, and for what is no job directory."""

import json
import os
from xml.etree import ElementTree as ET

import pytest
from event_files import Job, verdict

from rankpatrol.cli.main import call


@pytest.fixture
def job(tmp_path):
    """A job directory of one hang."""
    story = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 41))
    story.at(70, "verdict", **verdict(50, [3])).at(75, "attempt_ended", reason="ended_by_rankpatrol")
    story.at(75, "incident_closed", incident=1, how="ended").attempt(1, 80).at(80, "resumed", step=30).steps(90, range(31, 61))
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(story.at(130, "job_ended", exit_code=0).content())
    return folder


def test_it_says_where_the_time_went_and_what_the_incident_cost(job, capsys):
    assert call(["goodput", str(job)]) == 0
    out = capsys.readouterr().out
    assert "2 attempts · 1 incident" in out
    assert "incident 1 (attempt 0): hang / rank_blocked, rank 3 on n0" in out
    assert "after its onset: detected 20 s · named 20 s · back 51 s" in out
    assert "NCCL's default of 10 min, or " in out


def test_the_document_is_the_only_thing_on_stdout(job, capsys):
    assert call(["goodput", "--json", str(job)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["parts_s"].values()) == pytest.approx(found["wall_s"]) == 130
    assert found["ettr_ratio"] == pytest.approx(found["parts_s"]["productive"] / 130)
    assert found["badput_types"]["lost_work"] == ["WASTED_PROGRESS_FROM_DISRUPTION"]
    assert found["runs"][0]["cards"][0]["incident"]["culprit_ranks"] == [3]


def test_the_picture_is_drawn_and_well_formed(job, tmp_path):
    target = tmp_path / "goodput.svg"
    assert call(["goodput", str(job), "--svg", str(target)]) == 0
    root = ET.fromstring(target.read_bytes())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    classes = {element.get("class") for element in root.iter("{http://www.w3.org/2000/svg}rect")}
    assert {"productive", "stall", "recovery", "lost_work", "initialisation"} <= classes


def test_words_of_a_log_cannot_break_the_picture_or_the_terminal(job, tmp_path, capsys):
    lines = (job / "events.jsonl").read_text().replace("rank sleeps", "</svg><script>\\u001b[2J[bold]")
    (job / "events.jsonl").write_text(lines)
    assert call(["goodput", str(job), "--svg", str(tmp_path / "x.svg")]) == 0
    ET.fromstring((tmp_path / "x.svg").read_bytes())
    assert "</svg><script>?[2J[bold]" in capsys.readouterr().out


def test_a_directory_named_twice_counts_once(job, capsys):
    assert call(["goodput", "--json", str(job), f"{job}/."]) == 0
    assert json.loads(capsys.readouterr().out)["wall_s"] == 130


@pytest.mark.parametrize(("content", "said"), [(None, "has no events.jsonl"), (b"", "holds no event"), (b"\x00\xff{", "holds no event")])
def test_what_is_no_job_directory_is_said(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    assert call(["goodput", str(tmp_path)]) == 65
    assert said in capsys.readouterr().err


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_said(job, capsys):
    (job / "events.jsonl").chmod(0)
    assert call(["goodput", str(job)]) == 77


def test_a_picture_that_cannot_be_written_is_said(job, capsys):
    assert call(["goodput", str(job), "--svg", "/no/such/folder/x.svg"]) == 65
    assert "the picture cannot be written" in capsys.readouterr().err
