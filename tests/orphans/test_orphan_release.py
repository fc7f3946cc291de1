"""Releases on real processes. Whatever is signalled here lives in a pid namespace of its own; the victims write down what they hear."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from orphan_subjects import needs_namespace

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
