import io
import os
import pickle
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoiled_checkpoints import Check, StandingClock, every_dtype, ranges, rebuilt

from rankpatrol.checkpoints.report import CheckpointReport, CheckpointVerdict
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import BadInput

many = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", ["state_120", "dtypes", "nothing", "protocol3", "protocol4", "protocol5"])
def test_what_torch_saved_is_ok_to_the_last_byte(saved: Path, name: str) -> None:
    report = Verifier().verify(saved / f"{name}.pt")
    assert (report.verdict, report.cause, report.content_verified) == ("ok", "none", True)


def test_a_report_names_step_size_and_layout(saved: Path) -> None:
    report = Verifier().verify(saved / "state_120.pt")
    assert (report.step, report.layout, report.size_bytes) == (120, "torch_zip", (saved / "state_120.pt").stat().st_size)


def test_a_file_saved_without_checksums_is_ok_but_says_so(saved: Path) -> None:
    report = Verifier().verify(saved / "without_checksums.pt")
    assert report.verdict == "ok"
    assert not report.content_verified
    assert "content unknown (saved without checksums)" in report.sentence


def test_one_checksum_that_is_missing_among_others_is_damage(saved: Path, check: Check) -> None:
    data = bytearray((saved / "state_120.pt").read_bytes())
    at = data.rindex(b"state_120/data/2") - 30
    assert data[at - 16 : at - 12] == b"PK\x01\x02"
    data[at : at + 4] = bytes(4)
    report = check(bytes(data))
    assert (report.verdict, report.key) == ("corrupt", "data/2")


def test_a_frame_that_was_never_filled_in_is_incomplete(saved: Path) -> None:
    report = Verifier().verify(saved / "skipped_data.pt")
    assert report.verdict == "incomplete"
    assert "nothing was filled in" in report.sentence


def test_a_frame_that_was_filled_in_is_ok_with_unknown_content(saved: Path, check: Check) -> None:
    data = bytearray((saved / "skipped_data.pt").read_bytes())
    start, end = ranges(saved / "skipped_data.pt")["data/0"]
    data[start:end] = b"x" * (end - start)
    report = check(bytes(data))
    assert (report.verdict, report.content_verified) == ("ok", False)


def test_the_old_layout_is_ok_in_structure_and_its_content_is_not_vouched_for(saved: Path) -> None:
    report = Verifier().verify(saved / "legacy.pt")
    assert (report.layout, report.verdict, report.content_verified) == ("torch_legacy", "ok", False)
    assert "content unknown" in report.sentence


def test_a_file_cut_at_any_byte_is_never_ok(saved: Path, check: Check) -> None:
    data = (saved / "state_120.pt").read_bytes()
    for length in [*range(200), *range(200, len(data), 37), *range(len(data) - 120, len(data))]:
        report = check(data[:length])
        assert report.verdict in {"incomplete", "corrupt"}, (length, report)
        assert report.cause == "ckpt_truncated"
        assert report.offset_bytes == length


def test_a_file_cut_inside_a_storage_names_it_and_what_is_whole(saved: Path, check: Check) -> None:
    start, _ = ranges(saved / "state_120.pt")["data/2"]
    report = check((saved / "state_120.pt").read_bytes()[: start + 100])
    assert report.key == "data/2"
    assert "with 100 of 240 bytes of it there (2 of 16 storages are whole)" in report.sentence


@pytest.mark.parametrize(("age_s", "said"), [(4, "may still be being written"), (7200, "2 h 0 min ago: its writer died")])
def test_a_torn_file_is_told_by_its_age(saved: Path, tmp_path: Path, age_s: int, said: str) -> None:
    path = tmp_path / "step_7.pt"
    path.write_bytes((saved / "state_120.pt").read_bytes()[:3000])
    report = Verifier(StandingClock(path.stat().st_mtime + age_s)).verify(path)
    assert said in report.sentence


def test_a_save_in_progress_is_incomplete_until_its_end(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "step_7.pt"
    seen: list[CheckpointReport] = []

    class Watched(io.BytesIO):
        def write(self, data: Any) -> int:
            written = os.write(fd, data)
            seen.append(Verifier().verify(path))
            return written

    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    torch.save(every_dtype(), Watched())
    os.close(fd)
    assert len(seen) > 50
    assert {report.verdict for report in seen[:-1]} == {CheckpointVerdict.INCOMPLETE}
    assert Verifier().verify(path).verdict == "ok"


def test_a_flipped_bit_in_any_member_names_it(saved: Path, check: Check) -> None:
    path = saved / "dtypes.pt"
    data = path.read_bytes()
    for key, (start, end) in ranges(path).items():
        for at in {start, (start + end) // 2, end - 1} if start < end else ():
            spoiled = bytearray(data)
            spoiled[at] ^= 1 << at % 8
            report = check(bytes(spoiled))
            assert (report.verdict, report.key, report.offset_bytes) == ("corrupt", key, start), report


@pytest.mark.parametrize("key", ["data.pkl", "data/0", "data/15"])
def test_a_removed_member_is_named(saved: Path, check: Check, key: str) -> None:
    report = check(rebuilt(saved / "state_120.pt", lambda name, data: None if name == key else data))
    assert (report.verdict, report.cause, report.key) == ("incomplete", "ckpt_incomplete_set", key)


def test_a_storage_of_the_wrong_length_is_named_although_its_checksum_is_right(saved: Path, check: Check) -> None:
    report = check(rebuilt(saved / "state_120.pt", lambda name, data: data[:-4] if name == "data/0" else data))
    assert (report.verdict, report.cause, report.key) == ("corrupt", "ckpt_truncated", "data/0")
    assert "holds 956 bytes in data/0 where data.pkl needs 960" in report.sentence


def test_two_storages_that_changed_places_are_found(saved: Path, check: Check) -> None:
    with zipfile.ZipFile(saved / "state_120.pt") as archive:
        first, second = archive.read("state_120/data/0"), archive.read("state_120/data/2")
    swap = {"data/0": second, "data/1": first}
    assert check(rebuilt(saved / "state_120.pt", swap.get)).verdict == "corrupt"


def test_a_file_with_wide_zip64_numbers_is_read(saved: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 16)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    data = rebuilt(saved / "state_120.pt", lambda _, data: data)
    assert data.count(b"\xff\xff\xff\xff") > 20
    assert check(data).verdict == "ok"
    spoiled = bytearray(data)
    spoiled[data.index(b"state_120/data/0") + 500] ^= 4
    assert check(bytes(spoiled)).key == "data/0"


def test_a_storage_that_holds_a_zip_file_does_not_hide_a_cut(check: Check) -> None:
    import torch

    inner, outer = io.BytesIO(), io.BytesIO()
    torch.save({"small": torch.ones(3)}, inner)
    content = torch.frombuffer(bytearray(inner.getvalue()), dtype=torch.uint8)
    torch.save({"file": content}, outer)
    whole = outer.getvalue()
    assert check(whole).verdict == "ok"
    end_of_inner = whole.rindex(inner.getvalue()) + len(inner.getvalue())
    assert check(whole[:end_of_inner]).verdict in {"incomplete", "corrupt"}


def test_a_pickle_that_would_run_a_command_is_only_walked(tmp_path: Path, check: Check) -> None:
    marker = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {marker}",)

    def archive(pickled: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as zipped:
            zipped.writestr("archive/data.pkl", pickled)
            zipped.writestr("archive/version", b"3\n")
        return out.getvalue()

    for protocol in range(6):
        assert check(archive(pickle.dumps([Bomb(), {"a": 1}], protocol))).verdict == "ok"
    assert not marker.exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert marker.exists(), "the bomb is no bomb, so this test showed nothing"


def with_pickle(pickled: bytes, name: str, data: bytes) -> bytes:
    return pickled if name == "data.pkl" else data


def test_a_pickle_that_cannot_be_followed_is_unknown_with_the_reason(saved: Path, check: Check) -> None:
    for pickled in (b"", b"no pickle", b"\x80\x02}q\x00.."[:4], b"\x80\x02h\x07.", b"\x80\x02(K\x01tQ.", b"Psome text\n."):
        report = check(rebuilt(saved / "state_120.pt", partial(with_pickle, pickled)))
        assert (report.verdict, report.key) == ("unknown", "data.pkl"), report
        assert "does not tell which storages it needs" in report.sentence


def test_a_zip_file_of_something_else_is_unknown(check: Check) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("notes.txt", "hello")
    assert check(out.getvalue()).verdict == "unknown"


def test_a_file_of_zeros_is_incomplete(check: Check) -> None:
    assert check(bytes(10000)).verdict == "incomplete"


@given(st.binary(max_size=3000), st.booleans())
@many
def test_random_bytes_are_judged_and_never_ok(check: Check, data: bytes, as_zip: bool) -> None:
    assert check(b"PK\x03\x04" + data if as_zip else data).verdict != "ok"


def mutated(original: bytes, data: st.DataObject) -> bytes:
    spoiled = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(spoiled) - 1))
        piece = data.draw(st.binary(max_size=12))
        spoiled[start : start + data.draw(st.integers(0, 12))] = piece
    return bytes(spoiled)


@given(st.data())
@many
def test_whatever_a_mutation_leaves_ok_torch_loads_unchanged(saved: Path, check: Check, data: st.DataObject) -> None:
    import torch

    original = (saved / "state_120.pt").read_bytes()
    spoiled = mutated(original, data)
    if check(spoiled).verdict == "ok":
        assert repr(torch.load(io.BytesIO(spoiled))) == repr(torch.load(io.BytesIO(original)))


@given(st.data())
@settings(many, max_examples=100)
@pytest.mark.parametrize("name", ["dtypes", "without_checksums", "skipped_data", "legacy"])
def test_any_mutation_of_any_file_gets_a_verdict(saved: Path, check: Check, name: str, data: st.DataObject) -> None:
    report = check(mutated((saved / f"{name}.pt").read_bytes(), data))
    assert report.verdict in CheckpointVerdict
    assert report.sentence.isprintable()


@pytest.mark.parametrize(
    "from_end",
    [22 + 4, 22 + 20 + 32, 22 + 20 + 40],
    ids=["volumes in all", "entries in this volume", "this volume"],
)
def test_a_file_that_claims_other_volumes_is_not_ok_since_torch_refuses_it(saved: Path, check: Check, from_end: int) -> None:
    import torch

    data = bytearray((saved / "state_120.pt").read_bytes())
    data[-from_end] ^= 2
    assert check(bytes(data)).verdict == "corrupt"
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(data))


def test_a_storage_that_is_marked_as_a_directory_is_not_ok_since_torch_reads_nothing_into_it(saved: Path, check: Check) -> None:
    data = bytearray((saved / "state_120.pt").read_bytes())
    data[data.rindex(b"state_120/data/2") - 8] |= 0x10
    report = check(bytes(data))
    assert (report.verdict, report.key) == ("corrupt", "data/2")


def test_a_known_file_is_read_again_only_when_it_was_written_again(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "step_7.pt"
    path.write_bytes((saved / "state_120.pt").read_bytes())
    status = path.stat()
    verifier = Verifier()
    assert verifier.verify(path).verdict == "ok"
    start, _ = ranges(path)["data/0"]
    with path.open("r+b") as out:
        out.seek(start)
        out.write(b"spoiled")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert verifier.verify(path).verdict == "ok", "it was read again although size and time are the same"
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert verifier.verify(path).verdict == "corrupt"


class WritingClock(StandingClock):
    """Asked for the time, it writes to the file that is being read: what a training may do at any moment."""

    def __init__(self, path: Path, length: int) -> None:
        super().__init__(0.0)
        self.path, self.length = path, length

    def unix_s(self) -> float:
        os.truncate(self.path, self.length)
        return self.now_unix_s


@pytest.mark.parametrize("length", [100, 1 << 20])
def test_a_file_that_changes_under_our_eyes_is_incomplete(saved: Path, tmp_path: Path, length: int) -> None:
    path = tmp_path / "step_7.pt"
    path.write_bytes((saved / "state_120.pt").read_bytes())
    report = Verifier(WritingClock(path, length)).verify(path)
    assert report.verdict == "incomplete"
    assert "while it was read" in report.sentence


def test_a_fifo_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_7.pt")
    with pytest.raises(BadInput, match="not a regular file"):
        Verifier().verify(tmp_path / "step_7.pt")


def test_a_file_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        Verifier().verify(tmp_path / "step_7.pt")
