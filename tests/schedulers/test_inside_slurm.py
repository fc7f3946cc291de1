"""A training under `rankpatrol run` in a batch job: restarts in place come first, then a requeue without the node."""

import json
import sys
from pathlib import Path

import pytest
import torch
from sites import SLEEPER, STANDIN, wait_for
from slurm_cluster import Cluster

from rankpatrol.cli.main import call
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.lease import take_lease

pytestmark = pytest.mark.timeout(120)

FAILS = """
import os, time
print("step 7/100 loss 0.1", flush=True)
time.sleep(3)
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
    time.sleep(600)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), 7)  # SIGBUS, as of bad memory
time.sleep(600)
"""
TELLS = """
import os, time
with open("resumed.new", "w") as told:
    print("from", repr(os.environ["RANKPATROL_RESUME_FROM"]), file=told)
os.rename("resumed.new", "resumed")
time.sleep(600)
"""


def submit(slurm: Cluster, tmp_path, *options: str, command: str = "fails") -> str:
    (tmp_path / "fails.py").write_text(FAILS if command == "fails" else SLEEPER)
    words = f"exec {sys.executable} -m rankpatrol run --no-probe --job-dir {tmp_path}/job-${{SLURM_RESTART_COUNT:-0}}"
    line = f"{words} --max-restarts 9 {sys.executable} {STANDIN} 2 {tmp_path}/fails.py"
    return slurm.submit(f"export RANKPATROL_LEASES={tmp_path}/leases\n{line}", "-N1", "-n2", *options)


def events(tmp_path, restart=0):
    path = tmp_path / f"job-{restart}" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_third_equal_failure_moves_the_job_to_another_node(slurm: Cluster, tmp_path):
    job = submit(slurm, tmp_path, "--requeue")
    first = slurm.slurm("squeue", "-h", "-j", job, "-o", "%N")
    wait_for(lambda: slurm.slurm("squeue", "-h", "-j", job, "-t", "R", "-O", "RestartCnt:|", check=False) == "1|", 90)
    assert slurm.slurm("squeue", "-h", "-j", job, "-o", "%x") == first
    assert slurm.slurm("squeue", "-h", "-j", job, "-o", "%N") != first
    done = [(event["what"], event["done"]) for event in events(tmp_path) if event["kind"] == "action"]
    assert done[:3] == [("confirm_job", None), ("confirm_job", True), ("requeue_job", None)]
    # Each attempt before that was restarted in place.
    begun = [event for event in events(tmp_path) if event["kind"] == "attempt_started"]
    assert len(begun) == 3
    assert {place["node"] for event in begun for place in event["ranks"].values()} == {first}, "Slurm's name, which is not the host's here"
    assert [event["how"] for event in events(tmp_path) if event["kind"] == "incident_closed"] == ["ended", "ended", "requeued"]
    # The delay before its second start is told, so that nobody takes it for a fault.
    wait_for(lambda: [event for event in events(tmp_path, 1) if event["kind"] == "queued"], 30)
    queued = next(event for event in events(tmp_path, 1) if event["kind"] == "queued")
    assert 4 < queued["at_unix_s"] - queued["since"] < 60
    slurm.slurm("scancel", job)


def resumed_from(tmp_path) -> str:
    wait_for(lambda: (tmp_path / "resumed").exists() and (tmp_path / "resumed").read_text(), 60)
    said = (tmp_path / "resumed").read_text().strip()
    (tmp_path / "resumed").unlink()
    return said


def test_a_job_that_was_queued_again_goes_on_and_one_that_only_inherits_the_word_does_not(slurm: Cluster, tmp_path):
    (tmp_path / "ckpt").mkdir()
    torch.save({"step": 20, "w": torch.zeros(10)}, tmp_path / "ckpt" / "step_000020.pt")
    (tmp_path / "tells.py").write_text(TELLS)
    run = f"exec {sys.executable} -m rankpatrol run --no-probe --job-dir {tmp_path}/$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}"
    line = f"cd {tmp_path}\n{run} --checkpoints {tmp_path}/ckpt {sys.executable} {STANDIN} 1 {tmp_path}/tells.py"
    job = slurm.submit(line, "-N1", "--requeue", "--export=ALL,SLURM_RESTART_COUNT=3")
    assert resumed_from(tmp_path) == "from ''"
    slurm.slurm("scontrol", "requeue", job)
    assert resumed_from(tmp_path) == f"from '{tmp_path}/ckpt/step_000020.pt'"
    slurm.slurm("scancel", job)


def test_while_its_own_agent_acts_nobody_else_ends_the_job(slurm: Cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANKPATROL_LEASES", str(tmp_path / "leases"))
    monkeypatch.chdir(tmp_path)
    job = submit(slurm, tmp_path, "--no-requeue", command="sleeps")
    wait_for(lambda: [event for event in events(tmp_path) if event["kind"] == "attempt_started"], 30)
    run_dir = Path(json.loads((tmp_path / "job-0" / "job.json").read_text())["run_dir"])
    lease = take_lease(run_dir / "lease", "the job's own agent", SystemClock(), lasts_s=60)
    assert call(["end", "--job", job, "--yes"]) == 3
    assert "the job's own agent on" in capsys.readouterr().err
    assert slurm.state(job) == "RUNNING"
    lease.give_back()
    assert call(["end", "--job", job, "--yes"]) == 0


def test_a_job_that_may_not_be_requeued_ends(slurm: Cluster, tmp_path):
    job = submit(slurm, tmp_path, "--no-requeue")
    slurm.await_state(job, "FAILED", "COMPLETED", within_s=90)
    assert slurm.slurm("squeue", "-h", "-a", "-t", "all", "-j", job, "-O", "RestartCnt:|") == "0|"
    assert "is not requeued: it was submitted with --no-requeue" in slurm.output(job)
