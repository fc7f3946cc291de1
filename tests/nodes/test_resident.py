"""A hub and a resident agent, a real broker between them, and a job that nobody patrols: it is named and sealed, and never ended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_two_nodes import TORCHRUN, TRAINING, _no_broker

from clocks import FakeClock
from rankpatrol.agent.nodes.wire import Light, NodeState, pack, unpack
from rankpatrol.agent.resident.envelope import Envelope, JobExchange, Jobs, ToJob
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role

needs_broker = pytest.mark.skipif(bool(_no_broker()), reason=_no_broker())


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(look, said, within_s=60):
    until = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < until, said()
        time.sleep(0.1)
    return seen


@needs_broker
@pytest.mark.timeout(150)
def test_a_job_that_nobody_patrols_is_named_and_sealed_by_the_hub_and_goes_on(tmp_path):
    url, runs = f"nats://s3cret@127.0.0.1:{free_port()}", tmp_path / "runs"
    env = {key: value for key, value in os.environ.items() if not key.startswith("RANKPATROL")}
    env |= {"RANKPATROL_LEMONS": "", "TMPDIR": str(tmp_path), "RANKPATROL_STATE_DIR": str(tmp_path / "state")}
    # A name of this test alone: other jobs of this machine are none of its business.
    run_id = f"resident-{os.getpid()}"
    options = ["--nnodes", "1", "--nproc-per-node", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-id", run_id]
    said = (tmp_path / "said.txt").open("wb")

    def start(*words):
        return subprocess.Popen([sys.executable, *words], env=env, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True)

    def words():
        return (tmp_path / "said.txt").read_text()

    job = start(str(TORCHRUN), *options, str(TRAINING), "6")
    hub = start("-m", "rankpatrol", "hub", "--with-nats", "--exchange", url, "--jobs-dir", "runs", "--patience", "4s")
    agent = start("-m", "rankpatrol", "agent", "--exchange", url, "--node", "nodeA", "--state-dir", "agent", "--every", "1")
    try:
        folder = wait_for(lambda: next(iter(runs.glob(f"*{run_id}*")), None), words)
        verdict = wait_for(lambda: next((e for e in _of(folder) if e["kind"] == "verdict"), None), words)
        assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("hang", "rank_blocked", [1])
        sealed = wait_for(lambda: next((e for e in _of(folder) if e["kind"] == "bundle_sealed"), None), words)
        manifest = json.loads((folder / sealed["path"] / "manifest.json").read_text())
        assert [rank["rank"] for rank in manifest["ranks"]] == [0, 1]
        assert not [event for event in _of(folder) if event["kind"] == "action"]
        os.killpg(hub.pid, signal.SIGKILL)
        hub.wait(10)
        hub = start("-m", "rankpatrol", "hub", "--with-nats", "--exchange", url, "--jobs-dir", "runs", "--patience", "4s")
        wait_for(lambda: words().count("the hub listens") == 2, words)
        wait_for(lambda: json.loads((folder / "state.json").read_text())["at_unix_s"] > time.time() - 1.5, words)
        assert len([event for event in _of(folder) if event["kind"] == "verdict"]) == 1, "said once, over two hubs"
        assert len(list(runs.glob(f"*{run_id}*"))) == 1
        assert job.poll() is None, "nobody ended it"
    finally:
        for each in (agent, hub, job):
            each.send_signal(signal.SIGTERM)
        for each in (agent, hub):
            assert each.wait(20) == 0, words()
        job.wait(40)
        said.close()
    kept = {Path(each["run_dir"]) for each in json.loads((runs / "jobs.json").read_text()).values()}
    assert {path.parent for path in tmp_path.glob("rankpatrol-*/ranks")} <= kept, "only what the next hub goes on with is left"


def _of(folder):
    path = Path(folder) / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def state(node):
    return NodeState(version=1, release="0", node=node, at_mono_s=0.0, at_unix_s=0.0, parts=(), light=Light())


def test_a_hub_hears_each_job_apart_and_orders_say_which_they_mean(request):
    clock = FakeClock()
    room = parse_address(f"local:{request.node.name}")
    hub, node = open_exchange(room, "hub", role=Role.HUB, clock=clock), open_exchange(room, "n1", role=Role.NODE, clock=clock)
    try:
        asked = []
        node.serve(lambda command, body: asked.append((command, unpack(body, ToJob))) or b"jnull")
        jobs = Jobs(hub, "hub")
        node.tell(pack(Envelope(jobs={"a": pack(state("n1")), "b": b"not ours"})))
        assert set(jobs.hear()) == {"a", "b"}
        a = JobExchange(hub, jobs, "a")
        assert list(a.states()) == ["n1"]
        assert a.ask("n1", "look", b"x", 5.0) == b"jnull"
        assert asked == [("look", ToJob("a", b"x"))]
        assert jobs.spoken_of("a") == ("n1",)
        clock.advance(1.0)
        before = a.states()
        node.tell(pack(Envelope(jobs={"b": b"x"})))
        jobs.hear()
        assert a.states() is before, "nothing new has come of this job"
        assert jobs.spoken_of("a") == (), "the node speaks of it no more"
        clock.advance(1.0)
        node.tell(pack(Envelope(version=99, release="9", jobs={"c": b"x"})))
        assert "c" not in jobs.hear()
        assert "rankpatrol 9 there speaks version 99" in jobs.problems["n1"]
        clock.advance(1.0)
        node.tell(b"garbage")
        jobs.hear()
        assert jobs.problems["n1"]
    finally:
        hub.close()
        node.close()


def test_what_would_change_something_is_refused_by_a_resident_agent(tmp_path, request):
    from rankpatrol.agent.resident.node import Plan, ResidentNode
    from rankpatrol.core.errors import PatrolError

    exchange = open_exchange(parse_address(f"local:{request.node.name}"), "n1", role=Role.NODE)
    resident = ResidentNode(exchange, Plan(node="n1", folder=tmp_path), FakeClock())
    try:
        for order in ("end_attempt", "end_job", "start_next", "release", "rm -rf"):
            with pytest.raises(PatrolError) as refused:
                resident.answer(order, pack(ToJob("a", b"")))
            assert "only looks" in str(refused.value)
        with pytest.raises(PatrolError):
            resident.answer("look", pack(ToJob("a job that is not here", b"")))
        with pytest.raises(PatrolError):
            resident.answer("look", b"garbage")
    finally:
        resident.close()
