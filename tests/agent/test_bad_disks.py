"""Disks that are full where rankpatrol keeps its own: the training goes on, evidence finds a place, and what cannot be done is said."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankpatrol.evidence.manifest import verify
from standin_job import LAUNCHER, TRAINING, running

CAN_MOUNT = os.getuid() == 0 and shutil.which("unshare") and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
pytestmark = [pytest.mark.timeout(90), pytest.mark.skipif(not CAN_MOUNT, reason="only root may mount")]
FULL_SHM = 'mount -t tmpfs -o size=64k none /dev/shm && { dd if=/dev/zero of=/dev/shm/filler bs=4k 2>/dev/null || true; } && exec "$@"'
SMALL_JOB = 'mkdir job && mount -t tmpfs -o size=64k none job && exec "$@"'
SMALL_TMP = 'mount -t tmpfs -o size=4m none $TMPDIR && exec "$@"'


def test_a_full_shared_memory_costs_rankpatrol_nothing(tmp_path):
    with running(tmp_path, before=("unshare", "-m", "sh", "-c", FULL_SHM, "sh")) as job:
        assert job.process.wait(60) == 0, job.said()
    kinds = job.kinds()
    assert [kinds.count(kind) for kind in ("verdict", "bundle_sealed", "attempt_started")] == [1, 1, 2]
    sealed = Path(next(event["path"] for event in job.events() if event["kind"] == "bundle_sealed"))
    assert verify(sealed).ok
    assert '"available_bytes": 0' in (sealed / "host" / "disks.json").read_text()


def test_a_run_directory_that_fills_up_is_worked_around_where_that_can_be(tmp_path):
    with running(tmp_path, before=("unshare", "-m", "sh", "-c", SMALL_TMP, "sh"), launcher=(str(LAUNCHER), "3", str(TRAINING), "2")) as job:
        job.wait_for("attempt_started")
        run_dir = job.run_dir()
        fill = ["nsenter", "-t", str(job.process.pid), "-m", "dd", "if=/dev/zero", f"of={run_dir}/filler", "bs=4k"]
        subprocess.run(fill, capture_output=True, check=False)
        sealed = Path(job.wait_for("bundle_sealed")["path"])
        assert sealed == job.job_dir / "incidents" / "1", "the job directory has room"
        assert verify(sealed).ok
        assert job.process.wait(60) == 0, job.said()
    done = [(event["what"], event["done"]) for event in job.events() if event["kind"] == "action"]
    assert done[-1] == ("end_attempt", True)
    assert not [what for what, result in done if result is False]
    assert job.kinds().count("attempt_started") == 2
    assert f"no room in {run_dir}: a hang may not be recovered" in job.said()


def test_what_a_full_job_directory_did_not_take_stays_where_the_last_lines_say(tmp_path):
    with running(tmp_path, before=("unshare", "-m", "sh", "-c", SMALL_JOB, "sh")) as job:
        assert job.process.wait(60) == 0, job.said()
        told = re.search(r"the job directory takes no more \(No space left on device\): its records stay in (\S+)", job.said())
        assert told is not None, job.said()
        spool = Path(told[1])
        assert verify(spool / "incidents" / "1").ok
        kinds = [json.loads(line)["kind"] for line in (spool / "events.jsonl").read_text().splitlines()]
        assert [kinds.count(kind) for kind in ("verdict", "bundle_sealed", "attempt_started", "job_ended")] == [1, 1, 2, 1]
        why, status = job.type("why", str(spool)), job.type("status", str(spool))
        assert f"evidence: {spool}/incidents/1 (open report.html" in why.stdout
        assert "ended: finished" in status.stdout
        shutil.rmtree(spool.parent)


def test_without_its_reserve_a_full_run_directory_is_told_and_the_ranks_are_left_alone(tmp_path):
    with running(tmp_path, before=("unshare", "-m", "sh", "-c", SMALL_TMP, "sh"), launcher=(str(LAUNCHER), "3", str(TRAINING), "2")) as job:
        job.wait_for("attempt_started")
        run_dir = job.run_dir()
        within = ["nsenter", "-t", str(job.process.pid), "-m"]
        subprocess.run([*within, "rm", f"{run_dir}/reserve"], check=True)
        subprocess.run([*within, "dd", "if=/dev/zero", f"of={run_dir}/filler", "bs=4k"], capture_output=True, check=False)
        closed = job.wait_for("incident_closed")
        assert closed["how"] == "dismissed"
        assert not [event for event in job.events() if event["kind"] == "action"], "who may act cannot be written down"
        assert job.process.poll() is None, "the ranks are left as they are"
        said = job.type("status", "job")
        assert f"no room in {run_dir}" in said.stdout
    assert "nothing more was done: the lease of this job cannot be written: No space left on device" in job.said()
