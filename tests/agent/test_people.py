"""A pause, a question and an answer, on ranks that truly stand: `rankpatrol run` with a launcher and ranks that need no torch."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LAUNCHER = HERE.parent / "launch" / "standin_launcher.py"
TRAINING = HERE / "standin_training.py"

pytestmark = pytest.mark.timeout(90)


class RunningJob:
    """One job under `rankpatrol run`, and what a person types beside it."""

    def __init__(self, folder, process, env):
        self.folder, self.process, self.env = folder, process, env
        self.job_dir = folder / "job"

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
def running(folder, *options, launcher=(str(LAUNCHER), "3", str(TRAINING), "1")):
    local = Path(f"/tmp/rp-people-{os.getpid()}")
    local.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(local), "RANKPATROL_STATE_DIR": str(folder / "state")}
    with (folder / "stderr.txt").open("w") as errors:
        words = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", "--patience", "3s", *options, sys.executable, *launcher]
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        yield RunningJob(folder, process, env)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(40)
        assert list(local.iterdir()) == []
        local.rmdir()


def test_a_paused_job_is_watched_and_sealed_and_acted_upon_only_after_the_pause(tmp_path):
    with running(tmp_path) as job:
        job.wait_for("attempt_started")
        assert job.type("pause", "job", "--why", "new switch").returncode == 0
        job.wait_for("action_held")
        assert [kind for kind in job.kinds() if kind in {"verdict", "bundle_sealed", "action"}] == ["verdict", "bundle_sealed"]
        agent = json.loads((job.run_dir() / "agent.json").read_text())
        os.kill(agent["pid"], signal.SIGKILL)
        time.sleep(3)  # the new agent has come and has had rounds enough to act
        assert json.loads((job.run_dir() / "agent.json").read_text())["pid"] != agent["pid"]
        assert "action" not in job.kinds()
        status = job.type("status", "job")
        assert "actions are paused since" in status.stdout
        assert "(new switch); watching goes on. To end it: rankpatrol unpause job" in status.stdout
        assert json.loads(job.type("status", "job", "--json").stdout)["paused"]["why"] == "new switch"
        assert job.type("unpause", "job").returncode == 0
        assert job.process.wait(50) == 0, job.said()
        kinds = job.kinds()
        assert kinds[kinds.index("unpaused") :].count("bundle_sealed") == 1, "it was looked at and sealed again"
        assert kinds.index("unpaused") < kinds.index("action")
        bundles = [event["path"] for event in job.events() if event["kind"] == "bundle_sealed"]
        assert [Path(path).name for path in bundles] == ["1", "1.2"]
        for path in bundles:
            assert job.type("bundle", "verify", path).returncode == 0
        assert "actions are paused since" in job.said()


def test_a_question_is_answered_once_and_rightly(tmp_path):
    with running(tmp_path, "--policy", "ask") as job:
        question = job.wait_for("question")
        assert question["command"] == f"rankpatrol act {job.job_dir} 1 --yes"
        assert "action" not in job.kinds()
        status = job.type("status", "job")
        assert question["command"] in status.stdout
        assert "rankpatrol why job" in status.stdout
        unasked = job.type("act", "job", "2", "--yes")
        assert (unasked.returncode, "incident 1 is open now, not 2" in unasked.stderr) == (65, True)
        dry = job.type("act", "job", "1")
        assert (dry.returncode, dry.stdout) == (1, "would end attempt 0 and start the next one; add --yes to have it done\n")
        job.type("pause")
        job.wait_for("paused")
        held = job.type("act", "job", "1", "--yes")
        assert (held.returncode, "paused by" in held.stdout) == (1, True)
        job.type("unpause")
        job.wait_for("unpaused")
        done = job.type("act", "job", "1", "--yes")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        assert job.process.wait(30) == 0
        late = job.type("act", "job", "1", "--yes")
        assert (late.returncode, "has ended" in late.stderr) == (65, True)


def test_an_answer_to_what_has_changed_is_refused_with_what_is_so_now(tmp_path):
    with running(tmp_path, "--policy", "ask") as job:
        job.wait_for("question")
        started = job.wait_for("attempt_started")
        os.kill(started["ranks"]["1"]["pid"], signal.SIGSTOP)  # no longer asleep: another cause, and perhaps another remedy
        refused = job.type("act", "job", "1", "--yes")
        os.kill(started["ranks"]["1"]["pid"], signal.SIGCONT)
        assert refused.returncode == 1, refused.stdout
        assert "it is not so any more" in refused.stdout
        assert "action" not in job.kinds()
