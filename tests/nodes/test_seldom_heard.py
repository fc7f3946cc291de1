"""Nodes that tell a word every five seconds: the hub takes none of them for silent, accuses nobody of it, and sees who really stands."""

import random
from concurrent.futures import wait

import msgspec
import pytest
from test_other_nodes import Cluster, state

from clocks import FakeClock
from rankpatrol.agent.eyes import looks_kept
from rankpatrol.agent.nodes.heard import late_after_s, silent_after_s
from rankpatrol.agent.nodes.wire import Light, NodeState, Part, Seen, pack, unpack
from rankpatrol.agent.resident.envelope import Envelope, ToJob
from rankpatrol.agent.resident.hub import Hub, HubPlan
from rankpatrol.core.snapshot import LogSample
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.journal import read_events
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.rundir import RankPlace
from scenes import process, rank, stack

GROUP = '{"MASTER_PORT":"1"}'
WAITS = (("_engine_run_backward", "torch/autograd/graph.py", 824), ("backward", "torch/_tensor.py", 581), ("main", "train.py", 9))
SLEEPS = (("ask", "metrics.py", 31), ("main", "train.py", 9))


@pytest.fixture
def cluster(tmp_path, request):
    made = Cluster(tmp_path, request.node.name)
    yield made
    made.close()


def activity(number):
    facts = {"ended": False, "joined": True, "traced": False, "stopped": False, "step": None}
    return RankActivity(rank=number, main_thread_ticks=1, switches=1, **facts)


def test_a_node_is_late_and_silent_by_its_own_measure(cluster):
    light = Light(activities=(activity(1),))
    cluster.node("n2").tell(pack(state("n2", [1], every_s=5.0, light=light)))
    cluster.node("n3").tell(pack(state("n3", [2])))
    heard_s = cluster.clock.mono_s()
    assert [each.seen_at_s for each in cluster.others.light(GROUP).activities] == [heard_s]
    cluster.clock.advance(late_after_s(5.0) - 0.1)
    assert list(cluster.others.silent(GROUP)) == ["n3"]
    assert [each.seen_at_s for each in cluster.others.light(GROUP).activities] == [heard_s], "it is not time for the next one"
    cluster.clock.advance(0.2)
    assert [each.seen_at_s for each in cluster.others.light(GROUP).activities] == [None], "overdue: it stands, for all that is known"
    cluster.clock.advance(silent_after_s(5.0) - late_after_s(5.0))
    assert list(cluster.others.silent(GROUP)) == ["n2", "n3"]


@pytest.mark.parametrize(("every_s", "silent_s"), [(1.0, 6.0), (0.1, 6.0), (5.0, 18.0), (1e9, 183.0), (-1.0, 6.0)])
def test_no_node_can_make_itself_heard_for_ever(cluster, every_s, silent_s):
    cluster.node("n2").tell(pack(state("n2", [1], every_s=every_s)))
    assert cluster.others.silent(GROUP) == {}
    cluster.clock.advance(silent_s - 0.1)
    assert cluster.others.silent(GROUP) == {}
    cluster.clock.advance(0.2)
    assert list(cluster.others.silent(GROUP)) == ["n2"]


def test_a_state_of_an_older_release_says_nothing_of_its_interval():
    plain = msgspec.json.decode(msgspec.json.encode(state("n2", [1])))
    del plain["every_s"]
    assert unpack(b"j" + msgspec.json.encode(plain), NodeState).every_s == 1.0


def test_of_a_huge_job_enough_looks_are_kept_to_tell_a_spin():
    from rankpatrol.analysis.work import _LOOKS_TO_TELL_A_SPIN

    assert looks_kept(8) == looks_kept(2048) == 12
    assert looks_kept(8000) == _LOOKS_TO_TELL_A_SPIN


class Training:
    """A job of some nodes, two ranks each, that tell every five seconds, and a hub over it; all in virtual time."""

    def __init__(self, folder, room, nodes=4):
        self.clock, self.dice = FakeClock(), random.Random(3)
        address = parse_address(f"local:{room}")
        self.folder, self.nodes = folder, [f"n{number}" for number in range(nodes)]
        self.places = {name: open_exchange(address, name, role=Role.NODE, clock=self.clock) for name in self.nodes}
        for name, place in self.places.items():
            place.serve(lambda command, body, name=name: self.answer(name, command, body))
        self.hub_place = open_exchange(address, "hub", role=Role.HUB, clock=self.clock)
        self.said = []
        self.hub = Hub(self.hub_place, HubPlan(node="hub", jobs_dir=folder, patience_s=30.0, readings=True), self.clock, self)
        self.due_s = {name: self.clock.mono_s() + self.dice.uniform(0.0, 5.0) for name in self.nodes}
        self.frozen_at_s, self.culprit, self.mute = None, None, ()

    def say(self, what, style="plain"):
        self.said.append(what)

    def run(self, seconds):
        until_s = self.clock.mono_s() + seconds
        while self.clock.mono_s() < until_s:
            for name, due_s in self.due_s.items():
                if due_s <= self.clock.mono_s() and name not in self.mute:
                    self.places[name].tell(pack(Envelope(jobs={"train": pack(self.state(name))})))
                    self.due_s[name] += 5.0 + self.dice.uniform(0.0, 0.5)
            self.hub.round()
            wait(self.hub._under_way.values(), 30)
            self.clock.advance(0.5)

    def worked_s(self):
        return (self.clock.mono_s() if self.frozen_at_s is None else self.frozen_at_s) - 1000.0

    def ranks(self, name):
        first = 2 * self.nodes.index(name)
        return first, first + 1

    def state(self, name):
        count = int(40 * self.worked_s())
        ranks = self.ranks(name)
        facts = {"ended": False, "joined": True, "traced": False, "stopped": False, "main_thread_ticks": count, "switches": count}
        step = int(4 * self.worked_s())
        light = Light(
            activities=tuple(RankActivity(rank=each, step=step if each == 0 else None, **facts) for each in ranks),
            processes={each: process(100 + each, ticks=count) for each in ranks},
            logs={each: LogSample(100, (), step) for each in ranks if each == 0},
        )
        part = Part(number=1, group=GROUP, places=tuple(self.place(each, name) for each in ranks), exits={}, gone=())
        now = {"at_mono_s": self.clock.mono_s(), "at_unix_s": self.clock.unix_s()}
        return NodeState(version=1, release="0", node=name, parts=(part,), light=light, every_s=5.0, **now)

    def place(self, number, name):
        processes = {"shim_pid": 100 + number, "shim_start_ticks": 1, "pid": 100 + number, "start_ticks": 1}
        counts = {"torchrun_restarts": 0, "scheduler_restarts": 0, "started_unix_s": 0.0}
        world_size = 2 * len(self.nodes)
        return RankPlace(attempt=1, rank=number, local_rank=number % 2, world_size=world_size, node=name, **processes, **counts)

    def answer(self, name, command, body):
        unpack(body, ToJob)
        if command != "look":
            return pack("no native stack" if command == "native" else {})
        count = int(40 * self.worked_s())
        samples = []
        for each in self.ranks(name):
            frames = SLEEPS if each == self.culprit else WAITS
            sample = rank(each, process(100 + each, ticks=count), stack(100 + each, *frames))
            samples.append(msgspec.structs.replace(sample, node=name))
        return pack(Seen(at_mono_s=self.clock.mono_s(), ranks=tuple(samples)))

    def events(self, *kinds):
        (folder,) = self.folder.glob("train-*")
        self.hub._judged["train"]._agent._teller.courier.delivered(10)
        return [event for event in read_events(folder) if event["kind"] in kinds]

    def close(self):
        self.hub.settle(10)
        for place in (self.hub_place, *self.places.values()):
            place.close()
        for job in self.hub._judged.values():
            job._run_dir.remove()


@pytest.fixture
def training(tmp_path, request):
    made = Training(tmp_path / "jobs", request.node.name)
    (tmp_path / "jobs").mkdir()
    yield made
    made.close()


@pytest.mark.timeout(120)
def test_a_healthy_job_is_left_in_peace_and_a_frozen_one_is_named_once(training):
    training.run(300)
    assert training.events("signal", "alert", "verdict", "incident_closed") == []
    assert len(training.events("attempt_started")) == 1
    training.frozen_at_s, training.culprit = training.clock.mono_s(), 5
    onset_unix_s = training.clock.unix_s()
    training.run(60)
    (alert,) = training.events("alert")
    assert alert["suspect_ranks"] == [5]
    assert "(n2)" in alert["sentence"]
    assert alert["at_unix_s"] - onset_unix_s <= 15.0
    (verdict,) = training.events("verdict")
    assert (verdict["verdict"], verdict["culprit_ranks"]) == ("hang", [5])
    assert training.events("action") == []


@pytest.mark.timeout(120)
def test_a_node_that_tells_nothing_for_a_while_is_no_incident(training):
    training.run(60)
    training.mute = ("n1",)
    training.run(12)
    training.mute = ()
    training.run(30)
    assert training.events("alert", "verdict") == []


@pytest.mark.timeout(120)
def test_metrics_of_all_jobs_tell_how_long_each_node_has_been_silent(training):
    from prometheus_client.parser import text_string_to_metric_families

    from rankpatrol.metrics.collector import exposition

    training.run(30)
    training.mute = ("n1",)
    training.run(40)
    families = {each.name: each for each in text_string_to_metric_families(exposition(training.hub.readings()).decode())}
    silent = {sample.labels["node"]: sample for sample in families["rankpatrol_node_silent_seconds"].samples}
    assert sorted(silent) == ["n0", "n1", "n2", "n3"]
    assert {sample.labels["job_id"] for sample in silent.values()} == {"train"}
    assert silent["n1"].value > 35.0
    assert max(silent[name].value for name in ("n0", "n2", "n3")) < 7.0
    assert families["rankpatrol_job_ranks"].samples[0].value == 8
