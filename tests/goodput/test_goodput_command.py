"""`rankpatrol goodput` for people, for programs, as a picture, and for what is no job directory."""

import json
import time
from xml.etree import ElementTree as ET

import pytest
from event_files import Job, verdict

from rankpatrol.cli.main import call


@pytest.fixture
def job(tmp_path):
    """A job directory of one hang."""
    story = Job().starts().at(10, "phase", phase="train_step").steps(10, range(1, 41))
    story.at(70, "verdict", **verdict(50, [3])).at(74, "action", incident=1, what="end_attempt", done=True).at(
        75, "attempt_ended", reason="ended_by_rankpatrol"
    )
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


def test_without_a_job_directory_it_is_the_newest_one_here(job, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["goodput"]) == 65
    assert "there is no job here" in capsys.readouterr().err
    (job / "job.json").write_text("{}")
    (tmp_path / "rankpatrol-runs").mkdir()
    job.rename(tmp_path / "rankpatrol-runs" / "job")
    assert call(["goodput"]) == 0
    assert "2 attempts · 1 incident" in capsys.readouterr().out


def test_a_job_that_has_no_event_yet_is_said_to_be_young(tmp_path, capsys):
    (tmp_path / "job.json").write_text("{}")
    assert call(["goodput", str(tmp_path)]) == 65
    told = capsys.readouterr().err
    assert "has no event yet: no rank was seen" in told
    assert "is not a job directory" not in told


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
    assert "</svg><script>\N{REPLACEMENT CHARACTER}[2J[bold]" in capsys.readouterr().out


def test_a_directory_named_twice_counts_once(job, capsys):
    assert call(["goodput", "--json", str(job), f"{job}/."]) == 0
    assert json.loads(capsys.readouterr().out)["wall_s"] == 130


@pytest.mark.parametrize(("content", "said"), [(None, "has no events.jsonl"), (b"", "holds no event"), (b"\x00\xff{", "holds no event")])
def test_what_is_no_job_directory_is_said(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    assert call(["goodput", str(tmp_path)]) == 65
    assert said in capsys.readouterr().err


def test_a_job_of_a_month_is_read_in_seconds(tmp_path, capsys):
    """Half a million steps took 1.2 s of CPU before lines of progress were read in short; now some 0.3 s."""
    with (tmp_path / "events.jsonl").open("w") as events:
        events.write('{"at_unix_s": 1e9, "kind": "job_started", "attempt": 0, "command": ["t"], "ranks": 8}\n')
        events.writelines(f'{{"at_unix_s":{10**9 + at}.0,"kind":"progress","attempt":0,"step":{at}}}\n' for at in range(500_000))
        events.write('{"at_unix_s": 1000500000.0, "kind": "job_ended", "attempt": 0, "how": "finished"}\n')
    began_s = time.process_time()
    assert call(["goodput", str(tmp_path), "--json"]) == 0
    assert time.process_time() - began_s < 6
    account = json.loads(capsys.readouterr().out)["runs"][0]
    assert account["wall_s"] == 500_000
    assert account["parts_s"]["productive"] > 499_990


def test_a_spoiled_line_of_progress_costs_no_other(tmp_path, capsys):
    good = [f'{{"at_unix_s":{10**9 + at}.0,"kind":"progress","attempt":0,"step":{at}}}' for at in range(100)]
    spoiled = [
        '{"kind":"progress"}',
        '{"at_unix_s":-1,"kind":"progress","step":1}',
        '{"at_unix_s":1e9,"kind":"alert","why":"progress"',
        "7",
    ]
    (tmp_path / "events.jsonl").write_text("\n".join([*good[:50], *spoiled, *good[50:]]) + "\n")
    assert call(["goodput", str(tmp_path), "--json"]) == 0
    account = json.loads(capsys.readouterr().out)["runs"][0]
    assert account["wall_s"] == 99
    assert "4 of 104 lines could not be read" in account["remarks"][0]


def test_an_alert_between_progress_that_names_it_is_still_an_alert(tmp_path, capsys):
    good = [f'{{"at_unix_s":{10**9 + at}.0,"kind":"progress","attempt":0,"step":{at}}}' for at in range(100)]
    alert = '{"at_unix_s":1000000050.0,"kind":"alert","attempt":0,"incident":1,"cause":"spin","sentence":"progress","why":"progress"}'
    (tmp_path / "events.jsonl").write_text("\n".join([*good[:50], alert, *good[50:]]) + "\n")
    assert call(["goodput", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"][0]["cards"]) == 1
