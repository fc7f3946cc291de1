"""What people really have: folders with loops, packed and damaged files, long lines, nothing at all."""

import gzip
import io
import os
import sys

import msgspec
import pytest

from log_texts import waited
from rankpatrol.analysis.told.together import weigh
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import BadInput
from rankpatrol.intake import sources
from rankpatrol.intake.diagnose import diagnose

ECC = "[rank7]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def test_a_folder_of_one_log_a_rank_is_one_story(tmp_path):
    for rank in (0, 1, 3):
        (tmp_path / f"rank{rank}.log").write_text(waited(rank))
    (tmp_path / "rank2.log").write_text("step 811\n")
    answer = diagnose((str(tmp_path),))
    assert (answer.diagnosis.culprit_ranks, answer.files) == ((2,), 4)


def test_a_link_that_leads_back_up_is_not_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "again.log").symlink_to(tmp_path / "one.log")
    (tmp_path / "one.log").write_text(ECC)
    (tmp_path / "gone.log").symlink_to(tmp_path / "nowhere")
    answer = diagnose((str(tmp_path),))
    assert (answer.diagnosis.cause, answer.files, len(answer.missing)) == ("gpu_ecc", 1, 1)


def test_a_packed_log_is_unpacked(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress(ECC.encode()))
    assert diagnose((str(tmp_path / "log.gz"),)).diagnosis.cause == "gpu_ecc"


def test_what_came_before_a_damage_is_read_and_the_damage_is_said(tmp_path):
    (tmp_path / "log.gz").write_bytes(gzip.compress((ECC * 1).encode() + os.urandom(200_000))[:-50_000])
    answer = diagnose((str(tmp_path),))
    assert "damaged or cut" in answer.missing[0]


def test_zstd_without_a_library_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_ZSTD_READERS", ("no_such_library",))
    (tmp_path / "log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(BadInput, match="zstd"):
        diagnose((str(tmp_path / "log.zst"),))


@pytest.mark.parametrize("content", [b"", None])
def test_nothing_readable_is_bad_input(tmp_path, content):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput):
        diagnose((str(path),))


def test_bytes_that_are_no_text_do_not_hide_the_rest(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe\0\0" * 1000 + b"\n" + ECC.encode() + b"\0\0\xc3")
    assert diagnose((str(tmp_path / "log"),)).diagnosis.cause == "gpu_ecc"


def test_one_endless_line_takes_no_memory_and_hides_nothing(tmp_path):
    with (tmp_path / "log").open("wb") as file:
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b"\n" + ECC.encode())
    assert diagnose((str(tmp_path / "log"),)).diagnosis.cause == "gpu_ecc"


def test_a_progress_bar_is_one_line(tmp_path):
    bar = b"\r".join(b"Map: %d/100000" % n for n in range(0, 100_000, 7))
    (tmp_path / "log").write_bytes(bar + b"\n" + ECC.encode())
    assert diagnose((str(tmp_path / "log"),)).diagnosis.reasons_for[0].split(":")[1] == "2"


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ECC.encode())))
    assert diagnose(("-",)).diagnosis.culprit_ranks == (7,)


def test_of_several_answers_the_one_that_decides_stands():
    undecided = Diagnosis(verdict="undetermined", cause="unknown", sentence="?")
    hang = Diagnosis(verdict="hang", cause="unknown", certainty=Certainty.PROVED, sentence="hang")
    named = Diagnosis(verdict="hang", cause="filesystem_stall", sentence="storage")
    assert weigh([undecided, hang, named]) is named
    assert weigh([undecided]) is undecided
    assert weigh([]) is None


def seal(folder):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    sealed = Diagnosis(verdict="hang", cause="rank_stopped", culprit_ranks=(3,), certainty=Certainty.PROVED, sentence="rank 3 is stopped")
    (folder / "diagnosis.json").write_bytes(msgspec.json.encode(sealed))


def test_a_sealed_bundle_answers_for_itself(tmp_path):
    seal(tmp_path / "1")
    found = diagnose((str(tmp_path / "1"),)).diagnosis
    assert found.culprit_ranks == (3,)
    # This one has no manifest to speak of: it proves nothing.
    assert found.certainty is Certainty.SUSPECTED
    assert "not as it was sealed" in found.reasons_against[0]


def test_a_job_directory_answers_with_its_last_incident(tmp_path):
    seal(tmp_path / "incidents" / "2")
    (tmp_path / "events.jsonl").write_text('{"kind": "job_started"}\n')
    assert diagnose((str(tmp_path),)).diagnosis.cause == "rank_stopped"


def test_a_bundle_whose_diagnosis_is_damaged_is_bad_input(tmp_path):
    seal(tmp_path / "1")
    (tmp_path / "1" / "diagnosis.json").write_text("{")
    with pytest.raises(BadInput, match=r"diagnosis\.json"):
        diagnose((str(tmp_path / "1"),))


def test_the_order_of_files_is_not_the_order_of_events(tmp_path):
    """What one rank counts in a file that is read later says nothing of an exception in a file that was read before."""
    (tmp_path / "a.log").write_text("Traceback (most recent call last):\n  File 'train.py', line 3, in f\nKeyError: 'x'\n")
    (tmp_path / "rank1.log").write_text("".join(f"step {n} loss 1.0\n" for n in range(40)))
    assert diagnose((str(tmp_path),)).diagnosis.verdict == "crash"


def test_errors_of_an_earlier_attempt_are_not_todays(tmp_path):
    steps = "".join(f"[rank{rank}]: 2026-01-01 10:00:{n:02} step {n} loss 2\n" for n in range(9) for rank in range(4))
    (tmp_path / "log").write_text("".join(waited(rank) for rank in range(3)) + steps + "-- now=2026-01-01 10:00:10 --\n")
    assert diagnose((str(tmp_path),)).diagnosis.verdict == "healthy"


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"


@pytest.mark.parametrize("text", [f"[rank3]: {OOM}", f"[rank3]: {OOM}{OOM}", f"{OOM}[rank3]: {OOM}"])
def test_one_failure_is_not_its_own_doubt(tmp_path, text):
    (tmp_path / "job.log").write_text(text)
    found = diagnose((str(tmp_path),)).diagnosis
    assert (found.cause, found.culprit_ranks, found.reasons_against) == ("gpu_oom", (3,), ())


BAD = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\n    f()\nValueError: bad x\n'
RANKED = "".join(f"[rank3]: {line}\n" for line in BAD.splitlines())


@pytest.mark.parametrize("text", [RANKED, BAD + RANKED, RANKED + BAD])
def test_a_failure_that_is_written_with_and_without_its_rank_is_that_ranks(tmp_path, text):
    (tmp_path / "job.log").write_text(text)
    assert "rank 3 raised ValueError: bad x" in diagnose((str(tmp_path),)).diagnosis.sentence


def test_the_same_failure_in_another_file_may_be_anothers(tmp_path):
    (tmp_path / "a.log").write_text(BAD)
    (tmp_path / "b.log").write_text(RANKED)
    assert "rank 3 raised" not in diagnose((str(tmp_path),)).diagnosis.sentence
