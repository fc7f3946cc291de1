import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from shelves import SHELVES, put

from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.quarantine import (
    FOLDER,
    Condemned,
    NotQuarantined,
    Quarantine,
    condemn,
    plan_quarantine,
    quarantine,
    would_load_bad,
)
from rankpatrol.checkpoints.report import CheckpointReport, Selection
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.cli.checkpoints import checkpoints


def run(*words: object) -> Result:
    return CliRunner().invoke(checkpoints, [str(word) for word in words])


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return put(next(shelf for shelf in SHELVES if shelf.name == "deepspeed_zero1"), tmp_path)


def cut(path: Path) -> None:
    status = path.stat()
    os.truncate(path, status.st_size // 2)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_right_pointer_is_left_alone(shelf: Path) -> None:
    before = (shelf / "latest").stat().st_mtime_ns
    result = run("repair", shelf)
    assert (result.exit_code, result.stdout) == (0, "no pointer needed a repair\n")
    assert (shelf / "latest").stat().st_mtime_ns == before


@pytest.mark.parametrize("wrong", ["global_step2", "global_step9", "", "../elsewhere", "nothing\0"])
def test_a_wrong_pointer_is_put_right_and_a_copy_kept(shelf: Path, wrong: str) -> None:
    (shelf / "latest").write_text(wrong)
    result = run("repair", shelf)
    assert result.exit_code == 0, result.output
    assert (shelf / "latest").read_text() == "global_step4"
    copies = list(shelf.glob("latest.before-*"))
    assert [copy.read_text() for copy in copies] == [wrong]
    assert run("latest", shelf).exit_code == 0


def test_a_pointer_to_a_bad_checkpoint_is_led_to_the_newest_good_one(shelf: Path) -> None:
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    assert run("latest", shelf).exit_code == 1
    assert run("repair", shelf).exit_code == 0
    assert (shelf / "latest").read_text() == "global_step2"


def test_a_dry_run_changes_nothing(shelf: Path) -> None:
    (shelf / "latest").write_text("global_step9")
    result = run("repair", shelf, "--dry-run")
    assert "would make" in result.stdout
    assert (shelf / "latest").read_text() == "global_step9"
    assert not list(shelf.glob("latest.before-*"))


def test_nothing_is_repaired_where_nothing_is_good(shelf: Path) -> None:
    (shelf / "latest").write_text("global_step9")
    for step in ("global_step2", "global_step4"):
        cut(shelf / step / "mp_rank_00_model_states.pt")
    result = run("repair", shelf)
    assert result.exit_code == 2
    assert (shelf / "latest").read_text() == "global_step9"


def test_megatrons_tracker_is_written_in_its_own_form(tmp_path: Path) -> None:
    folder = put(next(shelf for shelf in SHELVES if shelf.name == "megatron"), tmp_path)
    tracker = folder / "latest_checkpointed_iteration.txt"
    tracker.write_text("6")
    assert run("repair", folder).exit_code == 0
    assert tracker.read_text() == "4"


def test_a_link_is_led_elsewhere_and_its_copy_kept(tmp_path: Path) -> None:
    folder = put(next(shelf for shelf in SHELVES if shelf.name == "fsdp_ranks"), tmp_path)
    (folder / "latest").symlink_to("step_9")
    assert run("repair", folder).exit_code == 0
    assert (folder / "latest").readlink() == Path("step_4")
    assert [copy.readlink() for copy in folder.glob("latest.before-*")] == [Path("step_9")]


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        ("latest", "it names a folder, and the newest good checkpoint is the file step_60.pt. If your script reads a file's name: printf"),
        ("latest_checkpointed_iteration.txt", "it names a folder, and the newest good checkpoint is the file step_60.pt"),
    ],
)
def test_a_text_that_cannot_name_a_file_is_left_with_the_reason_and_what_to_do(
    saved: Path, tmp_path: Path, pointer: str, words: str
) -> None:
    (tmp_path / "step_60.pt").write_bytes((saved / "state_120.pt").read_bytes())
    (tmp_path / pointer).write_text("80")
    result = run("repair", tmp_path)
    assert result.exit_code == 1
    assert "no pointer could be repaired" in result.stderr
    assert words in result.stderr
    assert (tmp_path / pointer).read_text() == "80"


def test_a_link_that_cannot_lead_to_the_good_one_is_left_with_the_command(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "step_60.pt").write_bytes((saved / "state_120.pt").read_bytes())
    (tmp_path / "latest").symlink_to("step_80")
    assert f"ln -sfn step_60.pt {tmp_path}/latest" in run("repair", tmp_path).stderr


def test_an_iteration_that_a_folder_does_not_tell_is_left_with_the_reason(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "step_60").mkdir()
    (tmp_path / "step_60" / "model.pt").write_bytes((saved / "state_120.pt").read_bytes())
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("80")
    assert "it tells an iteration, and the name step_60 tells none" in run("repair", tmp_path).stderr


def select(shelf: Path) -> Selection:
    return newest_good(shelf, Verifier())


def planned(shelf: Path) -> tuple[Selection, Quarantine, CheckpointReport]:
    selection = select(shelf)
    (one,) = plan_quarantine(selection)
    return selection, one, selection.rejected[0]


def prove(one: Quarantine, report: CheckpointReport, *, now_unix_s: float = 1_790_100_000) -> Condemned:
    return condemn(report, one, unchanged_for_s=600, now_unix_s=now_unix_s)


def test_a_bad_newest_is_renamed_and_never_deleted(shelf: Path) -> None:
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    selection, one, report = planned(shelf)
    assert "the script would load global_step4, which is bad" in would_load_bad(selection)
    assert "2 steps earlier" in would_load_bad(selection)
    there = quarantine(one, prove(one, report))
    assert there == shelf / FOLDER / "global_step4"
    assert (there / "mp_rank_00_model_states.pt").exists()
    assert not (shelf / "global_step4").exists()
    assert json.loads((shelf / FOLDER / "global_step4.why.json").read_text())["verdict"] == "incomplete"
    after = select(shelf)
    assert after.newest_good is not None
    assert after.newest_good.step == 2
    assert would_load_bad(after) == ""


def test_a_second_of_the_same_name_does_not_replace_the_first(shelf: Path) -> None:
    (shelf / FOLDER / "global_step4").mkdir(parents=True)
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    _, one, report = planned(shelf)
    assert quarantine(one, prove(one, report)).name == "global_step4.2"


def test_what_changed_after_it_was_judged_is_left_alone(shelf: Path) -> None:
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    _, one, report = planned(shelf)
    proof = prove(one, report)
    (shelf / "global_step4" / "more.pt").write_bytes(b"more")
    with pytest.raises(NotQuarantined, match="changed after it was judged"):
        quarantine(one, proof)
    assert (shelf / "global_step4").exists()


def test_what_may_still_be_being_written_is_left_alone(shelf: Path) -> None:
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    _, one, report = planned(shelf)
    with pytest.raises(NotQuarantined, match="a save may be going on"):
        prove(one, report, now_unix_s=report.modified_unix_s + 5)


def test_nothing_is_set_aside_where_no_good_one_is_left(shelf: Path) -> None:
    for step in ("global_step2", "global_step4"):
        cut(shelf / step / "mp_rank_00_model_states.pt")
    assert plan_quarantine(select(shelf)) == ()


def test_the_command_renames_only_when_told_yes(shelf: Path) -> None:
    cut(shelf / "global_step4" / "mp_rank_00_model_states.pt")
    first = run("repair", shelf, "--quarantine")
    assert first.exit_code == 1
    assert "give --yes" in first.stdout
    assert (shelf / "global_step4").exists()
    assert run("repair", shelf, "--quarantine", "--yes").exit_code == 0
    assert not (shelf / "global_step4").exists()
    assert run("latest", shelf).stdout == f"{shelf}/global_step2\n"


def test_only_the_bad_one_of_a_shelf_further_down_is_set_aside(saved: Path, tmp_path: Path) -> None:
    run_folder, whole_folder = tmp_path / "run7", tmp_path / "checkpoint-9"
    good = (saved / "state_120.pt").read_bytes()
    for folder, name, data in (
        (run_folder, "step_2.pt", good),
        (run_folder, "step_3.pt", good[:900]),
        (whole_folder, "model.bin", good),
        (whole_folder, "optimizer.pt", good[:900]),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    planned = {one.path for one in plan_quarantine(select(tmp_path))}
    assert planned == {str(run_folder / "step_3.pt"), str(whole_folder)}
