import os
import pickle
from pathlib import Path

import pytest
from shelves import DATA
from spoiled_checkpoints import StandingClock

from rankpatrol.checkpoints import ledger as ledgers
from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.checkpoints.report import CheckpointReport
from rankpatrol.checkpoints.verifier import Closeness, Verifier

PART = DATA / "weights" / "step_4" / "model-00001-of-00002.safetensors"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / PART.name
    path.write_bytes(PART.read_bytes())
    return path


def look(path: Path, ledger: Ledger, *, again: bool = False) -> CheckpointReport:
    return Verifier(StandingClock(1_790_000_000), ledger=ledger, closeness=Closeness(again=again)).verify(path)


def flip(path: Path, at: int) -> None:
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    with path.open("r+b") as out:
        out.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_first_look_is_remembered_over_processes_and_later_bytes_compared(weights: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    first = look(weights, ledger)
    assert "content unknown" in first.sentence
    assert not first.content_verified
    ledger.save()
    same = look(weights, Ledger(tmp_path / "ledger.json"), again=True)
    assert same.content_verified
    assert "content as at the first look (2026-09-21" in same.sentence
    flip(weights, 3000)
    wrong = look(weights, Ledger(tmp_path / "ledger.json"), again=True)
    assert (wrong.verdict, wrong.offset_bytes) == ("corrupt", 0)
    assert "though nobody wrote to it since" in wrong.sentence


def test_the_part_that_differs_is_told(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rankpatrol.checkpoints.ledger.CHUNK_BYTES", "rankpatrol.checkpoints.verifier.CHUNK_BYTES"):
        monkeypatch.setattr(name, 1024)
    assert ledgers.CHUNK_BYTES == 1024
    ledger = Ledger(tmp_path / "ledger.json")
    look(weights, ledger)
    flip(weights, 3000)
    assert look(weights, ledger, again=True).offset_bytes == 2048


def test_what_was_seen_first_stays_the_measure(weights: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    look(weights, ledger)
    flip(weights, 3000)
    for _ in range(2):
        assert look(weights, ledger, again=True).verdict == "corrupt"


def test_a_ledger_that_cannot_be_read_is_started_anew(weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    for content in (b"", b"{", b'{"version": 9, "known": {}}', b"\xff\xfe", b"[]"):
        path.write_bytes(content)
        ledger = Ledger(path)
        assert look(weights, ledger).verdict == "ok"
        assert ledger.save()
        assert not ledger.save(), "nothing is new"


def test_without_a_ledger_nothing_is_read_that_cannot_be_judged(weights: Path) -> None:
    read: list[int] = []
    assert Verifier(pace=Pace(told=read.append)).verify(weights).verdict == "ok"
    assert sum(read) < 2000


def test_a_shard_is_judged_anew_when_its_metadata_was_written_again(tmp_path: Path) -> None:
    for path in (DATA / "dcp_fsdp" / "step_4").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    metadata, shard = tmp_path / ".metadata", tmp_path / "__1_0.distcp"
    right = metadata.read_bytes()
    ledger = Ledger(tmp_path / "ledger.json")
    described = pickle.loads(right)
    for place in described.storage_data.values():
        place.offset += 1
    metadata.write_bytes(pickle.dumps(described))
    assert look(shard, ledger).verdict != "ok"
    metadata.write_bytes(right)
    os.utime(metadata, (1, 1))
    assert look(shard, ledger).verdict == "ok"


def test_files_that_are_gone_leave_the_ledger(weights: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    look(weights, ledger)
    weights.unlink()
    ledger.save()
    assert weights.name not in (tmp_path / "ledger.json").read_text()


def test_a_structure_look_does_not_stand_for_a_closer_one(saved: Path, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    path = saved / "state_120.pt"
    quick = Verifier(ledger=ledger, closeness=Closeness(content=False)).verify(path)
    assert not quick.content_verified
    assert "its content was not read" in quick.sentence
    assert Verifier(ledger=ledger).verify(path).content_verified


def test_a_rate_is_kept() -> None:
    import time

    pace = Pace(most_bytes_s=1e6)
    began = time.monotonic()
    for _ in range(10):
        pace.read(10_000)
    assert time.monotonic() - began >= 0.09
