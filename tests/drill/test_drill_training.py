"""The example training, alone: it ends well, and what it resumes it does not read again."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rankpatrol.drill.runner import environment, kept
from rankpatrol.drill.scene import Scene, build


def train(scene: Scene, checkpoint: str) -> tuple[int, list[str]]:
    command = [word.replace("{checkpoint}", checkpoint) for word in scene.training()]
    with kept(command, environment({}), left_file=scene.folder / "left.txt", output=scene.output) as keeper:
        code = keeper.wait(60)
    assert (scene.folder / "left.txt").read_text() == ""
    return code, [line for line in scene.output.read_text().splitlines() if line.startswith("step ")]


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_it_ends_well_and_goes_on_from_a_checkpoint_without_reading_the_past(tmp_path: Path) -> None:
    scene = Scene(folder=tmp_path, ranks=2, rank=0, step=1, steps=12, step_s=0.02)
    build(scene)
    code, lines = train(scene, "")
    assert code == 0
    assert [line.split()[1] for line in lines] == [f"{step}/12" for step in range(1, 13)]
    assert sorted(path.name for path in scene.checkpoints.iterdir()) == ["step_000010.pt", "step_000012.pt"]
    scene.last_checkpoint.unlink()
    for step in range(1, 11):
        for rank in range(2):
            msgspec.structs.replace(scene, step=step, rank=rank).block().write_bytes(b"no block any more")
    code, resumed = train(scene, str(scene.checkpoints / "step_000010.pt"))
    assert code == 0
    assert [line.rsplit(" (", 1)[0] for line in resumed] == [line.rsplit(" (", 1)[0] for line in lines[10:]]
    assert scene.last_checkpoint.exists()


def test_the_examples_know_nothing_of_the_patrol() -> None:
    examples = Path(__file__).parents[2] / "examples"
    for name in ("train.py", "make_data.py"):
        assert "patrol" not in (examples / name).read_text().lower()


def test_the_data_are_the_same_each_time_and_whole_blocks(tmp_path: Path) -> None:
    make_data = Path(__file__).parents[2] / "examples" / "make_data.py"
    for name in ("one", "two"):
        subprocess.run([sys.executable, str(make_data), str(tmp_path / name), "--samples", "33"], check=True, env=dict(os.environ))
    one, two = ([path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in ("one", "two"))
    assert one == two
    assert [len(block) for block in one] == [32 * 65 * 4] * 2
