"""`rankpatrol hub --metrics`: the real command serves what it hears of all jobs over a real broker."""

import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_other_nodes import state
from test_resident import needs_broker, wait_for

from rankpatrol.agent.nodes.wire import Light, pack
from rankpatrol.agent.resident.envelope import Envelope
from rankpatrol.exchange.open import connected_within, open_exchange
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.server import start_server
from rankpatrol.judge.records import RankActivity
from rankpatrol.system.clock import SystemClock


def word(job):
    facts = {"ended": False, "joined": True, "traced": False, "stopped": False, "main_thread_ticks": 1, "switches": 1, "step": 7}
    clock = SystemClock()
    now = {"at_mono_s": clock.mono_s(), "at_unix_s": clock.unix_s(), "every_s": 5.0}
    light = Light(activities=tuple(RankActivity(rank=rank, **facts) for rank in range(4)))
    return pack(Envelope(jobs={job: pack(state("n1", range(4), light=light, **now))}))


def samples(url, name):
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
    return {sample.labels["job_id"]: sample for sample in families[name].samples} if name in families else {}


@needs_broker
@pytest.mark.timeout(90)
def test_the_hub_serves_the_metrics_of_all_jobs_and_how_long_their_nodes_are_silent(tmp_path):
    server, address = start_server(tmp_path / "broker")
    env = {**os.environ, "RANKPATROL_EXCHANGE": address.url(secret=True), "TMPDIR": str(tmp_path), "RANKPATROL_LEMONS": ""}
    command = [sys.executable, "-m", "rankpatrol", "hub", "--jobs-dir", str(tmp_path / "jobs"), "--metrics", "127.0.0.1:0"]
    hub = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
    said = queue.Queue()
    threading.Thread(target=lambda: [said.put(line) for line in hub.stderr], daemon=True).start()
    nodes = [open_exchange(address, name, role=Role.NODE) for name in ("n1", "n2")]
    try:
        url = next(line for line in iter(lambda: said.get(timeout=40), None) if "metrics: http" in line).split("metrics: ")[1].strip()
        for node, job in zip(nodes, ("a", "b"), strict=True):
            assert connected_within(node, 20), node.trouble()
            node.tell(word(job))
        ranks = wait_for(lambda: len(found := samples(url, "rankpatrol_job_ranks")) == 2 and found, lambda: "no ranks")
        assert {job: sample.value for job, sample in ranks.items()} == {"a": 4, "b": 4}
        first = samples(url, "rankpatrol_node_silent_seconds")
        assert sorted((job, sample.labels["node"]) for job, sample in first.items()) == [("a", "n1"), ("b", "n2")]
        wait_for(lambda: samples(url, "rankpatrol_node_silent_seconds")["a"].value > first["a"].value, lambda: "silence does not grow")
    finally:
        for node in nodes:
            node.close()
        hub.send_signal(signal.SIGTERM)
        assert hub.wait(30) == 0
        hub.stderr.close()
        server.stop()


@needs_broker
@pytest.mark.timeout(60)
def test_an_address_that_is_none_is_wrong_usage():
    command = [sys.executable, "-m", "rankpatrol", "hub", "--exchange", "nats://x@127.0.0.1:1", "--metrics", "9464"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert told.returncode == 64
    assert "no address with a port" in told.stderr
