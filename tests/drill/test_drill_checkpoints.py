"""F21: what each row does to the checkpoints of a scene, and that the patrol's own eyes then choose what the row expects."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankpatrol.checkpoints.newest import newest_good
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.drill.faults import make
from rankpatrol.drill.faults.port import Moment
from rankpatrol.drill.injected import chores
from rankpatrol.drill.scene import SAVE_EVERY_STEPS, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(folder=tmp_path, ranks=4, rank=1, step=12)
    made.checkpoints.mkdir()
    for step in (10, 20):
        torch.save({"step": step, "weights": torch.rand(1000)}, made.checkpoints / f"step_{step:06d}.pt")
    return made


@pytest.mark.parametrize(
    ("fault_id", "rejected"),
    [
        ("F21-truncated", "step_000020.pt"),
        ("F21-flipped", "step_000020.pt"),
        ("F21-missing", "step_000021"),
        ("F21-latest", None),
    ],
)
def test_the_checkpoint_that_is_left_as_the_newest_good_one_is_the_one_to_resume(scene: Scene, fault_id: str, rejected: str | None) -> None:
    fault = make(fault_id)
    fault.strike(scene, Moment(step=20, keeper_pid=0))
    assert (scene.checkpoints / "step_000020.pt").stat().st_size > 4000, "before its moment nothing is done"
    fault.strike(scene, Moment(step=21, keeper_pid=0))
    selection = newest_good(scene.checkpoints, Verifier())
    assert selection.newest_good is not None
    assert selection.newest_good.step == fault.resume_step(scene)
    assert [Path(report.path).name for report in selection.rejected] == ([rejected] if rejected else [])


@pytest.mark.parametrize("drawn", range(12, 29))
def test_the_strike_meets_the_checkpoint_that_the_hang_leaves_as_the_newest(tmp_path: Path, drawn: int) -> None:
    """The rank sleeps in its step, the file is spoilt once the step before is told: a save must lie behind both, and none between."""
    step = make("F21-flipped").step(Scene(folder=tmp_path, ranks=4, rank=1, step=drawn))
    assert (step - 2) // SAVE_EVERY_STEPS == step // SAVE_EVERY_STEPS >= 2


def test_a_pointer_that_was_left_behind_is_told(scene: Scene) -> None:
    make("F21-latest").strike(scene, Moment(step=21, keeper_pid=0))
    pointer = scene.checkpoints / "latest"
    assert pointer.read_text() == "step_000010.pt"


def test_a_rank_that_is_killed_while_it_saves_leaves_half_a_file_under_its_name(scene: Scene) -> None:
    fault = make("F21-killed")
    environment = fault.prepare(scene)
    assert '"rank": 0' in environment["AT_CALL"]
    torch.save({"step": 20}, scene.checkpoints / "step_000020.pt")
    now = scene.checkpoints / "step_000030.pt"
    words = f"import sys; sys.path.insert(0, {str(Path(chores.__file__).parent)!r}); import chores; chores.die_in_half({fault.more()!r})"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == -signal.SIGKILL
    assert now.stat().st_size == (scene.checkpoints / "step_000020.pt").stat().st_size // 2
    selection = newest_good(scene.checkpoints, Verifier())
    assert selection.newest_good is not None
    assert selection.newest_good.step == 20 == fault.resume_step(scene)
