"""What outlives a job of `rankpatrol run`: the run directory's records stay as long as it does, and are its proof."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from orphan_subjects import needs_namespace

PLAYER = Path(__file__).with_name("outliving_player.py")

pytestmark = [needs_namespace, pytest.mark.timeout(60)]


def test_a_helper_that_outlives_a_finished_run_is_tied_proved_and_released(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="rp-", dir="/tmp") as short:  # pytest's own folder is too deep for a run directory's sockets
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, PLAYER, tmp_path, short]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["code"] == 0, told["said"]
    assert f"the job is over, and one process of its ranks not: {told['helper']}" in told["said"]
    assert [verdict for verdict, _ in told["while_live"]] == ["job's own"]
    assert [verdict for verdict, _ in told["after"]] == ["orphan"]
    assert "well, and so has its launcher" in told["after"][0][1]
    assert "that rank 0's shim made" in told["after"][0][1]
    assert told["records"] == ["exits", "job.json", "launcher.json", "launcher_exit.json", "outlived.json", "ranks"]
    assert told["released"] == [[told["helper"], True]]
    assert told["left"] == [], "records of processes that are gone stay behind"
