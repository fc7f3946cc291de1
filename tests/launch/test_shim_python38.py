"""The shim, and what it binds with, run under the training's own Python, 3.8 or later, with the standard library alone."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch_subjects import Job

import rankpatrol
from rankpatrol.launch.parent import PYTHON_SHIM

PACKAGE = Path(rankpatrol.__file__).parent
# What the shim binds a rank with.
AFFINITY = ("__init__", "binder", "cpus", "kernel", "machine", "nvml", "plan", "sharing", "sysfs", "tuples", "visible")
LOADED = [
    PACKAGE / "__init__.py",
    PACKAGE / "launch" / "__init__.py",
    *sorted((PACKAGE / "launch" / "shim").glob("*.py")),
    *(PACKAGE / "affinity" / f"{name}.py" for name in AFFINITY),
]
# What these files may import, all of it in 3.8 (docs.python.org/3.8/py-modindex.html).
IN_38 = frozenset(
    """
    collections contextlib ctypes errno fcntl json os queue resource select selectors signal
    socket stat struct subprocess sys termios threading time typing
    """.split()  # ruff: ignore[SIM905] - a list of words
)
OLD_PYTHONS = [path for minor in range(8, 14) if (path := shutil.which(f"python3.{minor}"))] + [
    str(path)
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.*/bin/python3"), key=lambda path: int(path.parts[-3].split(".")[1]))
]


def runs_the_shim(python: str) -> bool:
    """True for 3.8 and later that start at all (a launcher's stub may not)."""
    done = subprocess.run(
        [python, "-c", "import sys, ctypes; sys.exit(sys.version_info < (3, 8))"], capture_output=True, timeout=10, check=False
    )
    return done.returncode == 0


def names(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("path", LOADED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_38_can_read_it(path: Path) -> None:
    names(path)


@pytest.mark.parametrize("path", LOADED, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_it_imports_the_standard_library_of_38_and_its_own_room(path: Path) -> None:
    for node in ast.walk(names(path)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            ours = module.startswith("rankpatrol.launch.shim.") or module in {
                "rankpatrol.affinity",
                *(f"rankpatrol.affinity.{name}" for name in AFFINITY),
            }
            assert module in IN_38 or module == "__future__" or ours, module


@pytest.mark.parametrize("path", [path for path in LOADED if path.parent.name in {"shim", "affinity"}], ids=lambda path: path.name)
def test_annotations_are_not_evaluated_and_nothing_else_is_written_in_newer_types(path: Path) -> None:
    module = names(path)
    if any(isinstance(node, ast.AnnAssign | ast.FunctionDef) for node in ast.walk(module)):
        assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in module.body)
    for node in module.body:
        if isinstance(node, ast.Assign):  # a type alias is evaluated
            subscripts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Subscript)]
            assert not [each for each in subscripts if isinstance(each, ast.Name) and each.id in {"list", "dict", "tuple", "set", "type"}]


def test_the_oldest_and_the_newest_python_here_run_a_rank_under_the_shim(job: Job) -> None:
    ran: list[str] = []
    able = [python for python in OLD_PYTHONS if runs_the_shim(python)]
    for python in dict.fromkeys([sys.executable, *able[:1], *able[-1:]]):
        rank = "import sys; print(sys.version); sys.exit(3)"
        launcher = f"import subprocess, sys; sys.exit(subprocess.call([{str(PYTHON_SHIM)!r}, '-c', {rank!r}]))"
        done = subprocess.run(
            [python, "-W", "error", "-c", launcher], env=job.environment(), capture_output=True, timeout=15, check=False, text=True
        )
        version = subprocess.run([python, "-c", "import sys; print(sys.version)"], capture_output=True, timeout=10, check=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (3, version.stdout, ""), python
        assert job.exit(attempt=len(ran)) is not None
        ran.append(python)
    assert ran
