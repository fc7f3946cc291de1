"""Releases on real processes. Whatever is signalled here lives in a pid namespace of its own; the victims write down what they hear."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from orphan_subjects import cgroup2, needs_namespace

from cgroups import remove_cgroup

PLAYER = Path(__file__).with_name("scene_player.py")


@needs_namespace
@pytest.mark.timeout(400)
def test_every_proven_orphan_is_released_and_nobody_else_hears_anything(victim: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, PLAYER, tmp_path, victim, "200", "scenes"],
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == {}
    assert told["good"] == 200


@needs_namespace
@pytest.mark.parametrize(
    ("how", "done", "words"),
    [
        ("back", True, "its device files are closed, its GPU memory is back"),
        ("kept", False, "40.0 GiB of"),
        ("shared", True, "its memory cannot be told"),
        ("silent", True, "its memory cannot be told"),
    ],
)
def test_success_is_that_the_descriptors_are_closed_and_the_memory_is_back(
    victim: Path, tmp_path: Path, how: str, done: bool, words: str
) -> None:
    mount = cgroup2()
    assert mount is not None
    top = mount / f"rankpatrol-memory-{time.time_ns()}"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, PLAYER.with_name("memory_player.py")]
    try:
        ran = subprocess.run([*command, tmp_path, victim, top, how], capture_output=True, text=True, check=True)
    finally:
        remove_cgroup(top)
    (told,) = json.loads(ran.stdout)
    assert told["done"] is done
    assert words in told["why"]
    assert told["signals"] == ["SIGTERM"]
