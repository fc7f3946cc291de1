"""The table that the documentation shows is what the command prints on that scene."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from orphan_subjects import cgroup2, needs_namespace

from cgroups import remove_cgroup

SCENE = Path(__file__).with_name("told_scene.py")
TOLD = Path(__file__).parents[1] / "data/orphans/told.txt"

pytestmark = [needs_namespace, pytest.mark.timeout(60)]


def test_the_table_of_the_documentation_is_what_the_command_prints(victim: Path, build_nvml: Callable[..., Path], tmp_path: Path) -> None:
    mount = cgroup2()
    assert mount is not None
    top = mount / f"rankpatrol-told-{time.time_ns()}"
    top.mkdir()
    tmp_path.chmod(0o755)
    new = ["unshare", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "--kill-child"]
    try:
        done = subprocess.run(
            [*new, sys.executable, SCENE, victim, top, tmp_path],
            env={**os.environ, "LD_LIBRARY_PATH": str(build_nvml())},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        remove_cgroup(top)
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    said = re.sub(r"41 min \d s", "41 min 2 s", "\n".join(lines))
    assert re.sub(r"· [0-9-]{10} [0-9:]{8} ·", "· 2026-11-29 20:41:02 ·", said) == TOLD.read_text().rstrip()
