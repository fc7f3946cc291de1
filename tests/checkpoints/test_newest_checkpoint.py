import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.report import CheckpointReport
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import BadInput


class Put(Protocol):
    def __call__(self, name: str, *, at_s: int = 1000, whole: bool = True) -> Path: ...


@pytest.fixture
def put(saved: Path, tmp_path: Path) -> Put:
    """Put a checkpoint into the directory, good or cut, written at a given second."""
    good = (saved / "state_120.pt").read_bytes()

    def write(name: str, *, at_s: int = 1000, whole: bool = True) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(good if whole else good[:4000])
        os.utime(path, (at_s, at_s))
        return path

    return write


def chosen(directory: Path) -> tuple[str | None, list[str]]:
    selection = newest_good(directory, Verifier())
    good = selection.newest_good
    name = None if good is None else Path(good.path).relative_to(directory).as_posix()
    return name, [Path(report.path).name for report in selection.rejected]


def test_the_highest_step_wins_over_the_latest_write(put: Put, tmp_path: Path) -> None:
    put("step_200.pt", at_s=1000)
    put("step_90.pt", at_s=2000)
    assert chosen(tmp_path) == ("step_200.pt", [])


def test_a_newer_one_that_is_bad_is_rejected_with_its_reason_and_older_ones_are_not_read(put: Put, tmp_path: Path) -> None:
    put("step_300.pt", whole=False)
    put("step_200.pt")
    old = put("step_100.pt", whole=False)
    selection = newest_good(tmp_path, Verifier())
    assert selection.newest_good is not None
    assert selection.newest_good.step == 200
    assert [(report.step, report.verdict) for report in selection.rejected] == [(300, "incomplete")]
    assert selection.older == (str(old),)


def test_files_without_a_step_take_their_place_by_time(put: Put, tmp_path: Path) -> None:
    put("step_100.pt", at_s=1000)
    put("step_200.pt", at_s=2000)
    put("last.ckpt", at_s=2500)
    assert chosen(tmp_path)[0] == "last.ckpt"
    put("step_300.pt", at_s=3000)
    assert chosen(tmp_path)[0] == "step_300.pt"


def test_temporary_and_foreign_names_are_left_out(put: Put, tmp_path: Path) -> None:
    for name in (".step_9.pt", "step_8.pt.tmp", "step_7.tmp.pt", "step_6.txt", "step_5.pt.tmp.3821"):
        put(name)
    put("step_1.pt")
    assert chosen(tmp_path) == ("step_1.pt", [])


def test_a_directory_named_for_its_step_is_good_only_as_a_whole(put: Put, tmp_path: Path) -> None:
    put("checkpoint-100/model.bin")
    put("checkpoint-100/optimizer.pt")
    put("checkpoint-200/model.bin")
    put("checkpoint-200/optimizer.pt", whole=False)
    selection = newest_good(tmp_path, Verifier())
    assert selection.newest_good is not None
    assert selection.newest_good.path.endswith("checkpoint-100/model.bin")
    assert [Path(report.path).name for report in selection.beside] == ["optimizer.pt"]
    assert [report.step for report in selection.rejected] == [200]


def test_deeper_directories_are_not_searched(put: Put, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    put("a/b/step_3.pt")
    put("a/step_2.pt")
    assert chosen(tmp_path)[0] == "a/step_2.pt"


def test_a_link_does_not_stand_for_the_file_it_leads_to(put: Put, tmp_path: Path) -> None:
    put("step_10.pt")
    (tmp_path / "latest.pt").symlink_to("step_10.pt")
    assert chosen(tmp_path) == ("step_10.pt", [])


def test_a_link_to_nothing_is_reported(put: Put, tmp_path: Path) -> None:
    put("step_10.pt")
    (tmp_path / "latest.pt").symlink_to("step_11.pt")
    assert chosen(tmp_path) == ("step_10.pt", ["latest.pt"])


class RemovingVerifier(Verifier):
    """Before it reads a file, the training's clean-up removes that very file, once."""

    removed = False

    def verify(self, path: Path) -> CheckpointReport:
        if not self.removed:
            self.removed = True
            path.unlink()
        return super().verify(path)


def test_a_file_that_vanishes_meanwhile_is_passed_over_with_the_reason(put: Put, tmp_path: Path) -> None:
    put("step_20.pt")
    put("step_10.pt")
    selection = newest_good(tmp_path, RemovingVerifier())
    assert selection.newest_good is not None
    assert selection.newest_good.step == 10
    assert "No such file" in selection.rejected[0].sentence


def test_an_empty_directory_has_nothing_to_choose(tmp_path: Path) -> None:
    selection = newest_good(tmp_path, Verifier())
    assert (selection.newest_good, selection.rejected, selection.older) == (None, (), ())


def test_a_missing_directory_and_a_file_are_bad_input(put: Put, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        newest_good(tmp_path / "absent", Verifier())
    with pytest.raises(BadInput, match="Not a directory"):
        newest_good(put("step_1.pt"), Verifier())


AS_NOBODY = """
import os, sys
from pathlib import Path
from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import NoPermission
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    print(newest_good(Path(sys.argv[1]), Verifier()))
except NoPermission as problem:
    print("refused:", problem)
"""


def as_nobody(directory: Path) -> str:
    return subprocess.run([sys.executable, "-c", AS_NOBODY, directory], capture_output=True, text=True, timeout=15, check=True).stdout


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that every user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_that_may_not_be_read_is_a_permission_problem(open_directory: Path) -> None:
    open_directory.chmod(0o000)
    said = as_nobody(open_directory)
    open_directory.chmod(0o700)
    assert said.startswith("refused:")
    assert "Permission denied" in said


def test_a_file_that_may_not_be_read_is_passed_over_with_the_reason(saved: Path, open_directory: Path) -> None:
    for name, mode in (("step_2.pt", 0o000), ("step_1.pt", 0o644)):
        (open_directory / name).write_bytes((saved / "state_120.pt").read_bytes())
        (open_directory / name).chmod(mode)
    said = as_nobody(open_directory)
    assert "step_2.pt was not checked: cannot read" in said
    assert "step_1.pt is whole" in said
