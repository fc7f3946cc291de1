"""A job directory that hangs or is full harms neither the command nor its records."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run(job_dir, tmp_path, *command):
    """`rankpatrol run`, with a temporary folder of its own for the run directory."""
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    env.pop("XDG_RUNTIME_DIR", None)
    words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", str(job_dir), *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=40, check=False, env=env)


@pytest.mark.timeout(60)
def test_a_hanging_job_directory_costs_the_command_nothing_and_its_records_stay_local(tmp_path):
    job_dir, local = tmp_path / "job", Path(f"/tmp/rp-hang-{os.getpid()}")
    job_dir.mkdir()
    local.mkdir()
    # Opening a FIFO for writing waits for a reader that never comes: as a write to a dead mount does (fifo(7)).
    os.mkfifo(job_dir / "events.jsonl")
    done = run(job_dir, local, "sh", "-c", "echo trained; exit 3")
    assert (done.returncode, done.stdout) == (3, "trained\n")
    spool = re.search(r"its records stay in (\S+)", done.stderr)
    assert spool is not None, done.stderr
    kinds = [json.loads(line)["kind"] for line in (Path(spool[1]) / "events.jsonl").read_text().splitlines()]
    assert kinds == ["job_started", "job_ended"]
    shutil.rmtree(local)


def test_records_that_were_carried_leave_no_run_directory(tmp_path):
    local = Path(f"/tmp/rp-well-{os.getpid()}")
    local.mkdir()
    done = run(tmp_path / "job", local, "true")
    assert done.returncode == 0
    assert list(local.iterdir()) == []
    assert (tmp_path / "job" / "events.jsonl").exists()
    local.rmdir()
