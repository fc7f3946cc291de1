"""Which files are read as whose dump, and what the others cost."""

import gzip
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from rankpatrol.analysis.told.recordings import diagnose_recordings
from rankpatrol.formats.flight_recorder import parse_json
from rankpatrol.intake.recordings import looks_like_a_recording, rank_in_name, read_recordings

DATA = Path(__file__).parent.parent / "data" / "flight_recorder"


def placed(folder, name, scheme, *, kind="pickle", ranks=range(4)):
    """Copies of real dumps under other names."""
    for rank in ranks:
        target = folder / scheme.format(rank=rank)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(DATA / name / f"rank{rank}.{kind}", target)
    return folder


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3),
        ("comm_lib_trace_rank_1023", 1023),
        ("/d/nccl_trace_rank_3.json", 3),
        ("/d/rank12.pickle.gz", 12),
        ("run/incident/ranks/7/flight_recorder.json", 7),
        ("/scratch/my_dumps_9", 9),
        ("/scratch/fr7b_rank4", 4),
        ("train.log", None),
        ("/d/rank_3/notes.txt", None),
    ],
)
def test_the_rank_is_in_the_name(name, rank):
    assert rank_in_name(Path(name)) == rank


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("nccl_trace_rank_{rank}", "pickle"),
        ("comm_lib_trace_rank_{rank}", "pickle"),
        ("anything_{rank}", "pickle"),
        ("rank{rank}.json", "json"),
        ("node{rank}/nccl_trace_rank_{rank}", "pickle"),
    ],
)
def test_a_folder_of_dumps_is_read_as_one_set(tmp_path, scheme, kind):
    recordings, reasons = read_recordings([placed(tmp_path, "wrongop", scheme, kind=kind)])
    assert (sorted(recordings.rings), reasons) == ([0, 1, 2, 3], {})
    assert diagnose_recordings(recordings).culprit_ranks == (3,)


def test_a_bundles_own_recordings_are_read(tmp_path):
    for rank in range(4):
        own = tmp_path / "ranks" / str(rank) / "flight_recorder.json"
        own.parent.mkdir(parents=True)
        own.write_bytes(msgspec.json.encode(parse_json((DATA / "wrongop" / f"rank{rank}.json").read_bytes())))
    recordings, reasons = read_recordings([tmp_path])
    assert (sorted(recordings.rings), reasons) == ([0, 1, 2, 3], {})
    assert diagnose_recordings(recordings).cause == "collective_mismatch_op"


def test_compressed_dumps_are_read_and_cut_ones_are_not(tmp_path):
    for rank in range(4):
        packed = gzip.compress((DATA / "wrongop" / f"rank{rank}.pickle").read_bytes())
        (tmp_path / f"trace_rank_{rank}.gz").write_bytes(packed if rank else packed[:-20])
    recordings, reasons = read_recordings([tmp_path])
    assert sorted(recordings.rings) == [1, 2, 3]
    assert recordings.unread == {0: "it is a gzip file that ends too early"}
    assert list(reasons) == [tmp_path / "trace_rank_0.gz"]


def test_a_bomb_in_gzip_is_refused(tmp_path):
    (tmp_path / "trace_rank_0.gz").write_bytes(gzip.compress(b"\x00" * (200 << 20), 1))
    recordings, reasons = read_recordings([tmp_path / "trace_rank_0.gz"])
    assert recordings.rings == {}
    assert "more than 128 MiB" in reasons[tmp_path / "trace_rank_0.gz"]


def test_one_broken_dump_costs_its_own_reason_and_the_rest_is_answered(tmp_path):
    placed(tmp_path, "wrongop", "nccl_trace_rank_{rank}")
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x02}" + os.urandom(500))
    recordings, reasons = read_recordings([tmp_path])
    found = diagnose_recordings(recordings)
    assert (sorted(recordings.rings), list(reasons)) == ([0, 2, 3], [tmp_path / "nccl_trace_rank_1"])
    assert (found.cause, found.culprit_ranks) == ("collective_mismatch_op", None)
    assert any("the dump of rank 1 could not be read" in reason for reason in found.reasons_against)


def test_of_two_sets_of_the_same_moment_the_one_with_lines_is_read_and_the_other_told(tmp_path):
    placed(tmp_path, "wrongop", "rank{rank}")
    placed(tmp_path, "wrongop", "json_rank{rank}.json", kind="json")
    recordings, reasons = read_recordings([tmp_path])
    assert all(call.frames for call in recordings.calls)
    assert set(reasons) == {tmp_path / f"json_rank{rank}.json" for rank in range(4)}
    assert all("another set of dumps than rank0" in reason for reason in reasons.values())


def test_of_two_sets_the_readable_one_is_read(tmp_path):
    placed(tmp_path, "hang", "json_rank{rank}.json", kind="json")
    for rank in range(4):
        (tmp_path / f"rank{rank}").write_bytes(b"\x80\x02}broken")
    recordings, reasons = read_recordings([tmp_path])
    assert diagnose_recordings(recordings).culprit_ranks == (3,)
    assert len(reasons) == 4


def test_two_runs_in_two_folders_are_never_mixed(tmp_path):
    placed(tmp_path, "ok", "old/trace_rank_{rank}")
    placed(tmp_path, "hang", "new/trace_rank_{rank}")
    for rank in range(4):
        os.utime(tmp_path / "old" / f"trace_rank_{rank}", (1e9, 1e9))
    recordings, reasons = read_recordings([tmp_path])
    assert diagnose_recordings(recordings).culprit_ranks == (3,)
    assert {path.parent.name for path in reasons} == {"old"}


def test_a_dump_that_says_another_rank_than_its_name_is_not_read(tmp_path):
    dump = {"rank": 5, "version": "2.10", "entries": []}
    (tmp_path / "rank_3.json").write_text(json.dumps(dump))
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    (tmp_path / "rank_9.json").write_text(json.dumps({"version": "2.10", "entries": [], "pg_config": config}))
    recordings, reasons = read_recordings([tmp_path])
    assert recordings.rings == {}
    assert reasons[tmp_path / "rank_3.json"] == "it is named for rank 3, but says that it is of rank 5"
    assert reasons[tmp_path / "rank_9.json"] == "it is named for rank 9, but its job has ranks 0 to 1 alone"


def test_what_is_no_file_or_has_no_rank_costs_its_reason_and_blocks_nobody(tmp_path):
    os.mkfifo(tmp_path / "trace_rank_1")
    (tmp_path / "train.log").write_text("step 1\n")
    paths = [tmp_path / "trace_rank_1", tmp_path / "train.log", tmp_path / "trace_rank_2"]
    recordings, reasons = read_recordings(paths)
    assert recordings.rings == {}
    assert set(reasons) == set(paths)
    assert not looks_like_a_recording(tmp_path / "trace_rank_1")


def test_a_log_in_the_folder_is_no_dump(tmp_path):
    placed(tmp_path, "hang", "trace_rank_{rank}")
    (tmp_path / "rank3").write_text("[rank3]: ValueError\n")
    (tmp_path / "config7.json").write_text('{"lr": 1}')
    assert sorted(read_recordings([tmp_path])[0].rings) == [0, 1, 2, 3]
