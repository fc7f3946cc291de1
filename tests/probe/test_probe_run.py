"""`rankpatrol run` puts the probe in each rank, unless it is told not to."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from probe_subjects import plain_environment

from rankpatrol.launch import probe
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.launch.shim.marks import PROBE_PATH

PROBE = Path(probe.__file__).parent
# What torchrun does with PYTHON_EXEC, for one rank.
LAUNCHER = """
import os, subprocess, sys
env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
sys.exit(subprocess.call([os.environ["PYTHON_EXEC"], "-c", sys.argv[1]], env=env))
"""
# The environment a rank was started with is not the one its Python shows: the probe takes its words out of that.
TELL = """
import json, os, pathlib, sys, time
started = dict(word.split("=", 1) for word in pathlib.Path("/proc/self/environ").read_text().split(chr(0)) if "=" in word)
while not (path := pathlib.Path(os.environ["RANKPATROL_RUN_DIR"]) / "ranks" / "0.0.json").exists():
    time.sleep(0.01)
place = json.loads(path.read_text())
print(json.dumps([started, sorted(name for name in sys.modules if "probe" in name), place]))
"""


def run(tmp_path: Path, *options: str) -> tuple[dict[str, str], list[str], RankPlace]:
    """What a rank was started with, which modules of the probe it has, and what its shim wrote down."""
    words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(tmp_path / "job"), *options, "--", sys.executable, "-c", LAUNCHER]
    env = plain_environment(PYTHONPATH="/users/own")
    done = subprocess.run([*words, TELL], env=env, capture_output=True, timeout=18, check=True, text=True)
    environment, modules, place = json.loads(done.stdout)
    return environment, modules, RankPlace(**place)


@pytest.mark.timeout(30)
def test_a_rank_has_the_probe_and_its_shim_tells_where_its_marks_are(tmp_path: Path) -> None:
    environment, modules, place = run(tmp_path)
    assert environment["PYTHONPATH"] == PROBE_PATH + os.pathsep + "/users/own"
    assert modules
    assert str(place.marks_fd) == environment["RANKPATROL_MARKS_FD"]
    assert place.probe_socket == environment["RANKPATROL_RUN_DIR"] + "/probes/0.0.sock"


@pytest.mark.timeout(30)
def test_no_probe_leaves_the_ranks_python_alone(tmp_path: Path) -> None:
    environment, modules, place = run(tmp_path, "--no-probe")
    assert environment["PYTHONPATH"] == "/users/own"
    ours = {name for name in environment if name.startswith("RANKPATROL_")} - {"RANKPATROL_LEMONS"}  # the tests' own
    assert ours == {"RANKPATROL_RUN_DIR"}
    assert (modules, place.marks_fd, place.probe_socket) == ([], None, None)


@pytest.mark.parametrize("path", sorted(PROBE.rglob("*.py")), ids=lambda path: path.name)
def test_python_38_can_read_the_probe_and_its_standard_library_has_all_it_imports(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        for module in modules:
            assert module.partition(".")[0] in {"__future__", "_thread", *sys.stdlib_module_names}, module


def test_nothing_but_sitecustomize_is_in_the_folder_that_stands_on_the_path() -> None:
    """Each name there would hide a user's module."""
    assert {path.name for path in Path(PROBE_PATH).iterdir()} - {"__pycache__"} == {"sitecustomize.py"}
