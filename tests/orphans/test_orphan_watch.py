"""The agent's watch: what a rank left that died with its shim, by that shim's own record."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from orphan_subjects import needs_namespace

PLAYER = Path(__file__).with_name("watch_player.py")

pytestmark = [needs_namespace, pytest.mark.timeout(60)]


def play(folder: Path, policy: str) -> dict[str, Any]:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, PLAYER, folder, policy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_released_with_its_evidence_and_a_stranger_is_not(tmp_path: Path) -> None:
    told = play(tmp_path, "recover")
    assert told["while_live"] == []
    assert [(one["kind"], one["pid"]) for one in told["told"]] == [("orphan", told["loader"]), ("orphan_released", told["loader"])]
    assert "rank 3's shim made" in told["told"][0]["sentence"]
    assert told["told"][1]["done"] is True
    assert told["lives"] == {"loader": False, "stranger": True}
    assert Path(told["told"][1]["evidence"]).exists()


def test_where_the_policy_is_to_observe_it_is_told_only(tmp_path: Path) -> None:
    told = play(tmp_path, "observe")
    assert [one["kind"] for one in told["told"]] == ["orphan"]
    assert told["lives"] == {"loader": True, "stranger": True}
