"""The injected `sitecustomize`, in real interpreters."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankpatrol.drill.faults import make
from rankpatrol.drill.injected import before_step
from rankpatrol.drill.scene import Scene

TRAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.AdamW([weight])
for step in range(1, 5):
    weight.sum().backward()
    optimizer.step()
    print("step", step, flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copyfile(before_step.__file__, folder / "sitecustomize.py")
    return folder


def python(code: str, *path: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=15, check=False)


def variables(note: Path, **changes: str) -> dict[str, str]:
    return {"RANK": "2", "BEFORE_STEP_RANK": "2", "BEFORE_STEP_STEP": "3", "BEFORE_STEP_NOTE": str(note), **changes}


WATCHES = "import sys; print(any(type(finder).__name__ == '_Watch' for finder in sys.meta_path), 'torch' in sys.modules)"


def test_it_is_inert_without_its_variables(site: Path) -> None:
    done = python(WATCHES, site)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_it_watches_in_the_struck_rank_without_importing_torch(site: Path, tmp_path: Path) -> None:
    assert python(WATCHES, site, **variables(tmp_path / "note")).stdout == "True False\n"


@pytest.mark.parametrize(
    "changes", [{"RANK": "1"}, {"RANK": ""}, {"BEFORE_STEP_STEP": "soon"}, {"BEFORE_STEP_NOTE": ""}, {"TORCHELASTIC_RESTART_COUNT": "1"}]
)
def test_it_is_inert_in_other_ranks_other_attempts_and_when_told_nonsense(site: Path, tmp_path: Path, changes: dict[str, str]) -> None:
    done = python(WATCHES, site, **variables(tmp_path / "note", **changes))
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_it_runs_the_sitecustomize_that_it_hides_once(site: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("print('the user\\'s own ran')\n")
    done = python("pass", site, users, **variables(tmp_path / "note"))
    assert (done.stdout, done.stderr) == ("the user's own ran\n", "")


def test_it_does_not_run_itself_again_when_its_folder_is_named_twice(site: Path, tmp_path: Path) -> None:
    link = tmp_path / "again"
    link.symlink_to(site)
    done = python("print('up')", site, site, link, **variables(tmp_path / "note"))
    assert (done.stdout, done.stderr) == ("up\n", "")


def test_what_the_users_own_raises_does_not_keep_python_from_starting(site: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.mkdir()
    (users / "sitecustomize.py").write_text("raise ValueError('the user made this')\n")
    done = python("print('up')", site, users)
    assert (done.returncode, done.stdout) == (0, "up\n")
    assert "the user made this" in done.stderr


def test_the_rank_sleeps_before_the_drawn_step_of_a_real_optimizer_and_the_truth_is_told(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), **variables(note)}
    process = subprocess.Popen([sys.executable, "-c", TRAIN], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["step 1\n", "step 2\n"]
        while not note.exists() or not note.read_text().endswith("\n"):
            assert process.poll() is None
        told = json.loads(note.read_text())
        assert (told["rank"], told["step"], told["pid"]) == (2, 3, process.pid)
    finally:
        process.kill()
        rest, _ = process.communicate()
    assert rest == "", "no step may be done after the truth was told"


def test_where_the_truth_is_told_already_the_training_runs_through(site: Path, tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.write_text("{}\n")
    done = python(TRAIN, site, **variables(note))
    assert done.stdout.splitlines()[-1] == "step 4"
    assert note.read_text() == "{}\n"


def test_nothing_that_a_stack_shows_gives_the_fault_away(tmp_path: Path) -> None:
    scene = Scene(folder=tmp_path, ranks=4, rank=2, step=3)
    path = Path(make("F5").prepare(scene)["PYTHONPATH"].split(os.pathsep)[0]) / "sitecustomize.py"
    names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    assert "before_step" in names
    for word in ("fault", "drill", "inject", "hang", "stuck", "sleep", "rankpatrol"):
        assert not any(word in name.lower() for name in names)
        assert word not in str(path.relative_to(tmp_path))
