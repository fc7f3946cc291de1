"""One job under `rankpatrol run`, with a launcher and ranks that need no torch, and what a person types beside it."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
LAUNCHER = HERE / "launch" / "standin_launcher.py"
TRAINING = HERE / "agent" / "standin_training.py"


class RunningJob:
    """One job under `rankpatrol run`, and what a person types beside it."""

    def __init__(self, job_dir, process, env):
        self.folder, self.process, self.env = job_dir.parent, process, env
        self.job_dir = job_dir

    def events(self):
        try:
            return [json.loads(line) for line in (self.job_dir / "events.jsonl").read_text().splitlines()]
        except (FileNotFoundError, ValueError):
            return []

    def wait_for(self, kind, within_s=40):
        until = time.monotonic() + within_s
        while not (found := [event for event in self.events() if event["kind"] == kind]):
            assert time.monotonic() < until, [event["kind"] for event in self.events()]
            assert self.process.poll() is None or kind == "job_ended", self.said()
            time.sleep(0.1)
        return found[-1]

    def kinds(self):
        return [event["kind"] for event in self.events()]

    def type(self, *words):
        command = [sys.executable, "-m", "rankpatrol", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=self.env, cwd=self.folder)

    def run_dir(self):
        return Path(json.loads((self.job_dir / "job.json").read_text())["run_dir"])

    def said(self):
        return (self.folder / "stderr.txt").read_text()


@contextmanager
def running(folder, *options, launcher=(str(LAUNCHER), "3", str(TRAINING), "1"), before=(), name="job"):
    """A job whose rank 1 sleeps in its first attempt; `before` are words in front of `rankpatrol run`."""
    local = Path(f"/tmp/rp-people-{os.getpid()}")
    local.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(local), "RANKPATROL_STATE_DIR": str(folder / "state")}
    with (folder / "stderr.txt").open("w") as errors:
        words = [
            *before,
            sys.executable,
            "-m",
            "rankpatrol",
            "run",
            "--job-dir",
            name,
            "--patience",
            "3s",
            *options,
            sys.executable,
            *launcher,
        ]
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        yield RunningJob(folder / name, process, env)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(40)
        assert list(local.iterdir()) == []
        local.rmdir()
