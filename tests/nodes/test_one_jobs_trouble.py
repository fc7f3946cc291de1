"""One hub and one agent a node serve many jobs: what is wrong with one of them is not the others' affair."""

import gc
import os
import subprocess
import sys
import threading
from concurrent.futures import wait
from pathlib import Path

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.agent.nodes.wire import Light, NodeState, Part, pack, unpack
from rankpatrol.agent.resident import node as resident_node
from rankpatrol.agent.resident.envelope import Envelope
from rankpatrol.agent.resident.hub import Hub, HubPlan
from rankpatrol.agent.resident.node import Plan, ResidentNode
from rankpatrol.agent.voice import Voice
from rankpatrol.discover.records import FoundJob, FoundRank, Survey
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.system.process import identify


class Said(Voice):
    def __init__(self):
        self.lines = []

    def say(self, what, style="plain"):
        self.lines.append(what)


@pytest.fixture
def room(request, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_LEMONS", "")
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))
    address, clock = parse_address(f"local:{request.node.name}"), FakeClock()
    hub, node = open_exchange(address, "hub", role=Role.HUB, clock=clock), open_exchange(address, "n1", role=Role.NODE, clock=clock)
    yield hub, node, clock
    hub.close()
    node.close()


def round_of(hub):
    """One round, and what it began."""
    said = hub.round()
    wait(hub._under_way.values(), 60)
    return said


def word(group):
    part = Part(number=0, group=group, places=(), exits={}, gone=())
    return pack(NodeState(version=1, release="0", node="n1", at_mono_s=0.0, at_unix_s=0.0, parts=(part,), light=Light()))


def test_a_hub_survives_a_job_whose_words_make_no_sense(room, tmp_path):
    exchange, node, clock = room
    hub = Hub(exchange, HubPlan(node="hub", jobs_dir=tmp_path / "runs", patience_s=180.0), clock, Said())
    node.tell(pack(Envelope(jobs={"a": word("not json"), "b": word('{"MASTER_PORT":"1"}')})))
    assert round_of(hub).startswith("2 jobs")
    assert not [line for line in hub.voice.lines if "failed" in line]


def test_a_job_that_ended_while_no_hub_was_there_gets_its_last_word(room, tmp_path):
    exchange, node, clock = room
    plan = HubPlan(node="hub", jobs_dir=tmp_path / "runs", patience_s=180.0)
    first = Hub(exchange, plan, clock, Said())
    node.tell(pack(Envelope(jobs={"a": word("{}")})))
    round_of(first)
    (folder,) = [path for path in plan.jobs_dir.iterdir() if path.is_dir()]
    run_dir = msgspec.json.decode((folder / "job.json").read_bytes())["run_dir"]
    node.tell(pack(Envelope()))
    clock.advance(1.0)
    exchange.close()
    address = parse_address("local:another room")
    hub = Hub(open_exchange(address, "hub", role=Role.HUB, clock=clock), plan, clock, Said())
    for _ in range(8):
        round_of(hub)
        clock.advance(20.0)
    assert round_of(hub) == "0 jobs"
    assert not Path(run_dir).exists()
    assert b'"job_ended"' in (folder / "events.jsonl").read_bytes()


def test_a_job_that_is_over_leaves_no_thread_in_the_hub(room, tmp_path):
    exchange, node, clock = room
    before = set(threading.enumerate())
    hub = Hub(exchange, HubPlan(node="hub", jobs_dir=tmp_path / "runs", patience_s=180.0), clock, Said())
    node.tell(pack(Envelope(jobs={"a": word("{}")})))
    assert round_of(hub) == "1 job"
    clock.advance(1.0)
    node.tell(pack(Envelope()))
    for _ in range(8):
        clock.advance(20.0)
        said = round_of(hub)
    assert said == "0 jobs"
    hub.settle(60)
    gc.collect()
    left = [thread for thread in threading.enumerate() if thread not in before and not thread.name.startswith("exchange")]
    for thread in left:
        thread.join(20)
    assert [thread.name for thread in left if thread.is_alive()] == []


def found(name, *pids, key=""):
    ranks = tuple(
        FoundRank(rank=number, local_rank=number, world_size=len(pids), process=identify(pid), told_by="RANK")
        for number, pid in enumerate(pids)
    )
    return FoundJob(key=key or name, name=name, uid=os.getuid(), launcher=None, ranks=ranks, shared_key=name)


@pytest.fixture
def resident(room, tmp_path, monkeypatch):
    exchange, node, clock = room
    jobs = []
    monkeypatch.setattr(resident_node, "look_around", lambda _: (tuple(jobs), Survey(jobs=(), unnumbered=())))
    made = ResidentNode(node, Plan(node="n1", folder=tmp_path / "agent", every_s=1.0), clock)

    def told():
        clock.advance(20.0)
        said = made.round()
        return said, unpack(exchange.states()["n1"].state, Envelope).jobs

    yield jobs, told, made
    made.close()


def test_a_job_that_cannot_be_looked_at_hushes_no_other(resident, monkeypatch):
    jobs, told, made = resident
    jobs += [found("a", os.getpid()), found("b", os.getpid())]
    assert set(told()[1]) == {"a", "b"}

    def refused():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(made._parts["a"].service, "state", refused)
    said, words = told()
    assert set(words) == {"b"}
    assert "a: [Errno 28] No space left" in said


def test_the_last_word_of_a_job_says_that_its_ranks_are_gone(resident):
    jobs, told, _ = resident
    training = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    jobs.append(found("a", training.pid))
    assert unpack(told()[1]["a"], NodeState).parts[0].gone == ()
    training.communicate(b"\n")
    jobs.clear()
    assert unpack(told()[1]["a"], NodeState).parts[0].gone == (0,)
    assert told()[1] == {}


def test_two_jobs_of_one_name_are_not_taken_for_restarts_of_each_other(resident):
    jobs, told, _ = resident
    jobs += [found("a", os.getpid(), key="first"), found("a", os.getppid(), key="second")]
    for _ in range(3):
        said, words = told()
        assert [part.number for part in unpack(words["a"], NodeState).parts] == [0]
        assert "two jobs of one name run here" in said
