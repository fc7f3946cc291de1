"""Two nodes of one job, each with its own `rankpatrol run`, a real broker between them, and ranks that truly stand or fall."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankpatrol.exchange.server import ServerMissing, find_server

HERE = Path(__file__).parent
TORCHRUN = HERE / "torchrun"
TRAINING = HERE.parent / "agent" / "standin_training.py"
CRASHES = """
import os, sys, time
print("step 1", flush=True)
first, one = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0", os.environ["RANK"] == "1"
while first and not os.path.exists("go" if one else "sealed"):
    time.sleep(0.05)
if first and one:
    raise ValueError("a bad sample")
"""
TELLS = """
import os, sys, time
print("from", repr(sys.argv[1]), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""

pytestmark = pytest.mark.timeout(120)


def _no_broker():
    try:
        find_server()
    except ServerMissing as problem:
        return str(problem)
    return ""


if why := _no_broker():
    pytestmark = [pytestmark, pytest.mark.skip(reason=why)]


class TwoNodes:
    """One job on two nodes of this machine."""

    def __init__(self, folder, nodes):
        self.folder, self.nodes, self.job = folder, nodes, folder / "job"

    def events(self):
        try:
            lines = (self.job / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def of(self, kind):
        return [event for event in self.events() if event["kind"] == kind]

    def wait_for(self, kind, within_s=60):
        until = time.monotonic() + within_s
        while not (found := self.of(kind)):
            assert time.monotonic() < until, self.said()
            time.sleep(0.1)
        return found[-1]

    def said(self):
        return "\n".join((self.folder / f"{number}.txt").read_text() for number in (0, 1))

    def codes(self):
        return [node.wait(60) for node in self.nodes]

    def agent_of(self, node):
        """The pid of a node's agent: the child of its `rankpatrol run` that is one."""
        for pid in Path(f"/proc/{self.nodes[node].pid}/task/{self.nodes[node].pid}/children").read_text().split():
            if b"rankpatrol.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise AssertionError("no agent runs")


@contextmanager
def two_nodes(folder, *words, patrol=()):
    local = Path(f"/tmp/rp-nodes-{os.getpid()}")
    local.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(local), "RANKPATROL_STATE_DIR": str(folder / "state"), "RANKPATROL_LEMONS": ""}
    nodes = []
    for number in (0, 1):
        options = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number), "--rdzv-endpoint", "127.0.0.1:29400"]
        command = [sys.executable, "-m", "rankpatrol", "run", "--job-dir", "job", "--patience", "3s", *patrol, str(TORCHRUN), *options]
        with (folder / f"{number}.txt").open("wb") as said:
            nodes.append(subprocess.Popen([*command, "--rdzv-id", "r1", *words], cwd=folder, env=env, stdout=said, stderr=said))
    try:
        yield TwoNodes(folder, nodes)
    finally:
        for node in nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
                node.wait(40)
        assert list(local.iterdir()) == []
        local.rmdir()


def test_a_rank_of_another_node_is_named_sealed_ended_and_all_start_again(tmp_path):
    with two_nodes(tmp_path, str(TRAINING), "1") as job:
        verdict = job.wait_for("verdict")
        assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("hang", "rank_blocked", [1])
        assert job.codes() == [0, 0], job.said()
        bundle = job.job / job.of("bundle_sealed")[0]["path"]
        manifest = json.loads((bundle / "manifest.json").read_text())
        assert [rank["rank"] for rank in manifest["ranks"]] == [0, 1]
        assert all("stack" in rank["captured"] for rank in manifest["ranks"]), manifest["ranks"]
        hosts = {Path(name).parts[1] for name in manifest["files"] if name.startswith("host/") and len(Path(name).parts) == 3}
        assert len(hosts) == 1, "the other node's facts are below its name"
        assert [event["what"] for event in job.of("action") if event["done"]] == ["resume_from", "end_attempt"]
        assert job.of("attempt_ended")[0]["reason"] == "ended_by_rankpatrol"
        assert len(job.of("attempt_started")) == 2
        assert job.of("attempt_ended")[1]["exit_codes"] == {"0": 0, "1": 0}
        assert (job.of("job_ended")[0]["reason"], len(job.of("job_ended"))) == ("finished", 1)


def test_a_crash_on_another_node_is_named_before_its_launcher_hears_of_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CRASHES)
    with two_nodes(tmp_path, str(script)) as job:
        job.wait_for("attempt_started")
        (tmp_path / "go").touch()
        verdict = job.wait_for("verdict")
        assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("crash", "user_exception", [1])
        bundle = job.job / job.wait_for("bundle_sealed")["path"]
        (tmp_path / "sealed").touch()
        assert "a bad sample" in (bundle / "ranks" / "1" / "log_tail.txt").read_text()
        assert (bundle / "ranks" / "0" / "stack.json").exists(), "the other one was still there to be looked at"


def test_all_ranks_of_a_job_hear_from_the_first_node_how_it_starts(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    script = tmp_path / "train.py"
    script.write_text(TELLS)
    with two_nodes(tmp_path, str(script), "{checkpoint}", patrol=("--checkpoints", "checkpoints")) as job:
        job.wait_for("attempt_started")
        said = [json.loads(path.read_text()) for path in Path(f"/tmp/rp-nodes-{os.getpid()}").glob("rankpatrol-*/resume/0.json")]
        assert [(word["checkpoint"], word["by"]) for word in said] == [("", "agent")] * 2
        (tmp_path / "go").touch()
        assert job.codes() == [0, 0], job.said()
        assert "from ''" in (job.job / "attempts" / "0" / "rank1.log").read_text()


def test_a_killed_hub_is_followed_by_one_that_acts_once(tmp_path):
    with two_nodes(tmp_path, str(TRAINING), "1") as job:
        job.wait_for("alert")
        os.kill(job.agent_of(0), signal.SIGKILL)
        assert job.codes() == [0, 0], job.said()
        assert len([event for event in job.of("action") if event["what"] == "end_attempt" and event["done"]]) == 1
        assert len(job.of("verdict")) == 1
        assert job.of("job_ended")[0]["reason"] == "finished"


def test_a_node_that_is_cut_off_ends_nothing(tmp_path):
    with two_nodes(tmp_path, str(TRAINING), "1") as job:
        job.wait_for("attempt_started")
        hub = job.agent_of(0)
        os.kill(hub, signal.SIGSTOP)
        try:
            until = time.monotonic() + 60
            while "cut off from the other nodes" not in job.said():
                assert time.monotonic() < until, job.said()
                time.sleep(0.2)
            assert not job.of("action")
            assert all(node.poll() is None for node in job.nodes)
        finally:
            os.kill(hub, signal.SIGCONT)
        assert job.codes() == [0, 0], job.said()
