"""A process that truly hangs in the kernel: never proven, never signalled, its memory never read, and explained."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from orphan_subjects import needs_namespace

HERE = Path(__file__).parent


@needs_namespace
@pytest.mark.skipif(not (shutil.which("fsfreeze") and shutil.which("mkfs.ext4")), reason="takes util-linux and e2fsprogs")
def test_a_process_on_a_frozen_disk_is_called_stuck_and_left_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--mount", "sh", HERE / "frozen_disk.sh", tmp_path, sys.executable, HERE / "frozen_look.py"],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"no loop device: {done.stderr}")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["verdict"] for one in told["long"]] == ["unknown"] * 4 + ["stuck"] * 2
    assert [one["kill_pending"] for one in told["killed"]] == [True] * 3
    assert [one["verdict"] for one in told["killed"]] == ["unknown", "stuck", "stuck"]
    assert not any(one["proven"] or one["memory_read"] for one in told["long"] + told["killed"])
    assert "drain the node and reboot it" in told["long"][-1]["advice"]
