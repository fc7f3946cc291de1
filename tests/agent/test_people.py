"""A pause, a question and an answer, on ranks that truly stand."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from standin_job import running

pytestmark = pytest.mark.timeout(90)


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
        assert (kinds[0], kinds.count("paused"), kinds.count("unpaused")) == ("job_started", 1, 1), "told once, over two agents"
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
