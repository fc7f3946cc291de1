"""Hub and agents with certificates, end to end: the real commands, a real broker, and whoever is somebody else is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from test_resident import free_port, needs_broker, wait_for
from test_two_nodes import TORCHRUN, TRAINING


class Cluster:
    """A hub with its broker, by certificates, and the commands of its nodes."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("RANKPATROL")}
        self.env |= {"RANKPATROL_LEMONS": "", "TMPDIR": str(folder), "RANKPATROL_STATE_DIR": str(folder / "state")}
        self.started, self.files = [], []

    def start(self, name, *words):
        said = (self.folder / f"{name}.txt").open("wb")
        self.files.append(said)
        made = subprocess.Popen([sys.executable, *words], env=self.env, cwd=self.folder, stdout=said, stderr=said, start_new_session=True)
        self.started.append(made)
        return made

    def said(self, name):
        return (self.folder / f"{name}.txt").read_text()

    def agent(self, name, keys, node):
        url = f"tls://127.0.0.1:{self.port}"
        words = ("--exchange", url, "--keys", str(keys), "--node", node, "--state-dir", f"{name}-state", "--every", "1")
        return self.start(name, "-m", "rankpatrol", "agent", *words)

    def end(self):
        for each in reversed(self.started):
            if each.poll() is None:
                each.send_signal(signal.SIGTERM)
        for each in reversed(self.started):
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait(20)
        for file in self.files:
            file.close()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    yield made
    made.end()


@needs_broker
@pytest.mark.timeout(150)
def test_agents_are_heard_by_their_certificates_and_nobody_speaks_for_another(cluster, tmp_path):
    keys = tmp_path / "keys"
    init = [
        "-m",
        "rankpatrol",
        "hub",
        "init-keys",
        str(keys),
        "--nodes",
        "nodeA,nodeB",
        "--server",
        "127.0.0.1",
        "--port",
        str(cluster.port),
    ]
    subprocess.run([sys.executable, *init], env=cluster.env, check=True, capture_output=True, timeout=60)
    strange = tmp_path / "strange"
    subprocess.run(
        [sys.executable, *init[:4], str(strange), *init[5:]], env=cluster.env, check=True, capture_output=True, timeout=60
    )  # another authority, the same names
    run_id = f"keys-{os.getpid()}"
    options = ["--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", run_id]
    cluster.start("job", str(TORCHRUN), *options, str(TRAINING), "1000000")
    url = f"tls://127.0.0.1:{cluster.port}"
    cluster.start("hub", "-m", "rankpatrol", "hub", "--with-nats", "--exchange", url, "--keys", str(keys), "--jobs-dir", "runs")
    wait_for(lambda: "the hub listens" in cluster.said("hub"), lambda: cluster.said("hub"))
    # The node of another certificate, another name with a good one, and a good one of another authority.
    cluster.agent("liar", keys / "nodes" / "nodeB", "nodeA")
    cluster.agent("stranger", strange / "nodes" / "nodeB", "nodeB")
    log = tmp_path / "runs" / ".broker" / "nats.log"
    wait_for(lambda: "rankpatrol.to." in log.read_text() and "Violation" in log.read_text(), log.read_text)
    wait_for(lambda: "TLS handshake error" in log.read_text(), log.read_text)
    assert not list((tmp_path / "runs").glob(f"*{run_id}*")), "neither was heard"
    cluster.agent("nodeA", keys / "nodes" / "nodeA", "nodeA")
    folder = wait_for(lambda: next(iter((tmp_path / "runs").glob(f"*{run_id}*")), None), lambda: cluster.said("hub"))
    state = wait_for(lambda: _state(folder), lambda: cluster.said("hub"))
    assert [node["node"] for node in state["nodes"]] == ["nodeA"]
    assert state["nodes"][0]["heard_ago_s"] < 10


def _state(folder):
    path = folder / "state.json"
    if not path.exists():
        return None
    state = json.loads(path.read_text())
    return state if state["nodes"] else None


def test_no_key_is_left_readable_to_others(tmp_path):
    """What `init-keys` makes for a node can be copied as it is."""
    keys = tmp_path / "keys"
    command = [sys.executable, "-m", "rankpatrol", "hub", "init-keys", str(keys), "--nodes", "n1"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    shutil.copytree(keys / "nodes" / "n1", tmp_path / "copy")
    for path in (tmp_path / "copy").iterdir():
        if b"PRIVATE KEY" in path.read_bytes():
            assert path.stat().st_mode & 0o077 == 0
