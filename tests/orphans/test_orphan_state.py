"""What is kept between two calls counts for this boot, these device files, and no longer than it says something."""

from pathlib import Path

import msgspec
import pytest
from orphan_scenes import NOW, process, scan, word

from rankpatrol.core.records import ProcessId
from rankpatrol.orphans import ended_here, state
from rankpatrol.orphans.case import Case
from rankpatrol.orphans.ended_here import EndedHere
from rankpatrol.orphans.history import History, remember
from rankpatrol.orphans.records import JobState, Policy
from rankpatrol.orphans.state import Remembered

DEVICES = ("/dev/nvidia*",)
SEEN = remember(History(), scan(process()), idle_floor_bytes=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    kept = tmp_path / "state/orphans-seen.json"
    assert Remembered(kept, DEVICES).keep(SEEN, NOW) == ""
    return kept


def test_the_next_call_knows_what_was_seen(path: Path) -> None:
    assert Remembered(path, DEVICES).recall(NOW + 3600) == SEEN


def test_a_sight_before_a_long_gap_is_none(path: Path) -> None:
    assert Remembered(path, DEVICES).recall(NOW + 7201) == History()


def test_a_sight_from_a_clock_that_was_ahead_is_none(path: Path) -> None:
    assert Remembered(path, DEVICES).recall(NOW - 1) == History()


def test_a_sight_of_other_devices_is_none(path: Path) -> None:
    assert Remembered(path, ("/dev/kfd",)).recall(NOW) == History()


def test_a_sight_of_another_boot_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "boot_id", lambda: "another")
    assert Remembered(path, DEVICES).recall(NOW) == History()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"at_unix_s": 1}', b"\xff"])
def test_a_broken_file_is_no_memory(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert Remembered(path, DEVICES).recall(NOW) == History()


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "File exists" in Remembered(tmp_path / "file/seen.json", DEVICES).keep(SEEN, NOW)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EndedHere:
    monkeypatch.setattr(ended_here, "ticks_now", lambda: 50_000)
    here = EndedHere(tmp_path / "ended-jobs")
    assert here.remember(word("77", by="Slurm's Epilog")) == ""
    return here


def test_an_epilogs_word_is_kept_for_that_job_alone(ended: EndedHere) -> None:
    said = ended.words(frozenset({"77", "78", "../77", "train, attempt 0, rank 1"}))
    assert [(job, one.state, one.uid) for job, one in said.items()] == [("77", JobState.ENDED, 1001)]


def test_an_epilogs_word_of_another_boot_is_none(ended: EndedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_here, "boot_id", lambda: "another")
    assert ended.words(frozenset({"77"})) == {}


def test_what_others_could_have_written_is_not_read(path: Path, ended: EndedHere, tmp_path: Path) -> None:
    path.parent.chmod(0o777)
    (tmp_path / "ended-jobs").chmod(0o702)
    assert Remembered(path, DEVICES).recall(NOW) == History()
    assert ended.words(frozenset({"77"})) == {}


def test_what_is_no_end_is_not_kept(tmp_path: Path) -> None:
    here = EndedHere(tmp_path / "ended-jobs")
    here.remember(word("80", JobState.UNKNOWN))
    assert not (tmp_path / "ended-jobs").exists()


@pytest.mark.parametrize(("start_ticks", "state"), [(49_999, JobState.ENDED), (50_000, JobState.UNKNOWN), (60_000, JobState.UNKNOWN)])
def test_a_kept_word_says_nothing_of_a_process_that_began_after_it(ended: EndedHere, start_ticks: int, state: JobState) -> None:
    one = process(id=ProcessId("boot", 4711, start_ticks))
    seen = msgspec.structs.replace(scan(one), jobs=ended.words(frozenset({"77"})))
    owner = Case(one, seen, History(), Policy()).owner
    assert owner is not None
    assert owner.state is state
