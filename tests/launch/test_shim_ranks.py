"""Real torch ranks that a plain shell starts under `rankpatrol shim`: seen, examined, captured."""

import json
import sys

import pytest

from standin_job import running

pytest.importorskip("torch")
pytestmark = [pytest.mark.ranks, pytest.mark.timeout(150)]

TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(1)
until = time.monotonic() + 30
while time.monotonic() < until and not os.path.exists(sys.argv[1]):
    dist.all_reduce(tensor)
    time.sleep(0.05)
    if os.path.exists(sys.argv[1]):
        break
os._exit(0)
"""


def test_a_shells_torch_ranks_are_seen_examined_and_captured(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    shim = f"{sys.executable} -m rankpatrol shim -- {sys.executable} -u train.py stop"
    loop = f"for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29611 {shim} & done; wait"
    program = ("-c", f"import subprocess, sys; sys.exit(subprocess.call(['bash', '-c', {loop!r}]))")
    with running(tmp_path, launcher=program) as job:
        started = job.wait_for("attempt_started", within_s=40)
        assert sorted(started["ranks"]) == ["0", "1"]
        while not (rows := groups_of(job)):
            assert job.process.poll() is None
        captured = job.type("capture", "--job", "job", "--out", "bundle", "--json")
        (tmp_path / "stop").touch()
        assert job.process.wait(40) == 0
    assert [(row["level"], "gives up after 30 min 0 s (the default of gloo and others)" in row["found"]) for row in rows] == [
        ("hint", True)
    ]
    assert [rank["stack"] for rank in json.loads(captured.stdout)["ranks"]] == [True, True]
    snapshot = json.loads((tmp_path / "bundle" / "snapshot.json").read_text())
    assert [rank["marks"]["groups"][0]["ranks"] for rank in snapshot["ranks"]] == [[0, 1], [0, 1]]


def groups_of(job):
    rows = json.loads(job.type("doctor", "job", "--json").stdout)["rows"]
    return [row for row in rows if row["name"].startswith("group ")]
