"""What would end a part of a job, start its nodes from different checkpoints, or blame a node that only was busy."""

import json
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from test_other_nodes import Cluster, place, state

from clocks import FakeClock
from rankpatrol.act.plan import Outlook
from rankpatrol.agent import sealing
from rankpatrol.agent.agent import Agent
from rankpatrol.agent.ending import target_of
from rankpatrol.agent.eyes import Eyes
from rankpatrol.agent.nodes import meeting
from rankpatrol.agent.nodes.follower import Follower
from rankpatrol.agent.nodes.joined import JoinedScheduler
from rankpatrol.agent.nodes.others import Alone, CutOff, Sight
from rankpatrol.agent.nodes.parcel import Parcels
from rankpatrol.agent.nodes.service import NodeService
from rankpatrol.agent.nodes.wire import Greeting, Light, Look, NodeState, OfGroup, Seen, StartNext, pack, unpack
from rankpatrol.agent.recovery import NotRecovered, Recovery
from rankpatrol.agent.roster import Attempt, Roster
from rankpatrol.agent.teller import Teller
from rankpatrol.agent.voice import Voice
from rankpatrol.cli.jobs import run_dir_of
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing
from rankpatrol.core.starts import NextStart
from rankpatrol.evidence.bundle import BundleWriter
from rankpatrol.incident.records import IncidentState, Stage
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.pauses import Pause, job_switch, lift_pause, set_pause
from rankpatrol.launch.rundir import ROOMS, JobSpec, RankExit, ResumePoint, RunDir
from rankpatrol.launch.rundir import Cluster as Seats
from scenes import process, rank, stack

PORT = '{"MASTER_PORT":"1"}'
FOUND = Diagnosis(verdict="hang", cause="rank_blocked", culprit_ranks=(1,), certainty=Certainty.SUPPORTED, sentence="rank 1 sleeps")


def spec_of(folder, **facts):
    plain = {"job": "job", "job_dir": str(folder), "command": ("train",), "policy": "recover", "patience_s": 180.0, "checkpoints": None}
    return JobSpec(**{**plain, "started_unix_s": 1.8e9, "cluster": Seats(node="n1", first=True, run="r"), **facts})


@pytest.fixture
def run_dir(tmp_path):
    for room in ROOMS:
        (tmp_path / "run" / room).mkdir(parents=True)
    return RunDir(tmp_path / "run")


@pytest.fixture
def cluster(run_dir, request):
    made = Cluster(run_dir.spool, request.node.name)
    yield made
    made.close()


def opened(run_dir, number, ranks=(), *, by_shim=True, node="n1", **group):
    opener = {"shim_pid": 9} if by_shim else {}
    told = {"group": {"MASTER_PORT": "1", "restarts": number, **group}, **opener}
    (run_dir.path / "openings" / f"{number}.json").write_text(json.dumps(told))
    (run_dir.path / "claims" / f"{number}.0.json").write_text("{}")
    for each in ranks:
        run_dir.write(f"ranks/{number}.{each}.json", place(each, node, attempt=number))


def test_attempts_behind_one_unchanging_port_are_told_apart(run_dir):
    for number in range(3):
        opened(run_dir, number)
    opened(run_dir, 3, MASTER_PORT="2")
    groups = [run_dir.group_of(number) for number in range(4)]
    assert groups == [PORT, '{"MASTER_PORT":"1","again":1}', '{"MASTER_PORT":"1","again":2}', '{"MASTER_PORT":"2"}']


def test_of_a_job_that_was_found_nothing_is_counted_since_each_node_found_it_at_another_time(run_dir):
    for number in range(2):
        opened(run_dir, number, by_shim=False)
    assert run_dir.group_of(1) == PORT


def test_an_order_about_the_attempt_before_does_not_touch_the_one_that_runs(run_dir, tmp_path):
    opened(run_dir, 0)
    opened(run_dir, 1, [0])
    run_dir.path.joinpath("shims").mkdir(exist_ok=True)
    service = NodeService(spec_of(tmp_path), run_dir, "n2", FakeClock())
    service.answer("release", pack(OfGroup(group=PORT)))
    assert (run_dir.path / "released.0.json").exists()
    assert not (run_dir.path / "released.1.json").exists()


def test_the_ends_of_another_nodes_last_attempt_are_no_ends_of_the_new_one(run_dir, cluster):
    opened(run_dir, 0)
    opened(run_dir, 1, [0])
    cluster.node("n2").tell(pack(state("n2", [1], group=PORT)))
    assert [each.rank for each in Roster(run_dir, cluster.others).current().places] == [0]


def test_half_of_the_nodes_is_no_ground_to_end_anything(run_dir, tmp_path):
    opened(run_dir, 0, [0], world_size=4)
    room = Cluster(run_dir.spool, "half")
    try:
        nodes = {name: room.node(name) for name in ("n2", "n3", "n4")}
        for number, (name, node) in enumerate(nodes.items(), start=1):
            node.tell(pack(state(name, [number], group=run_dir.group_of(0))))
        clock = room.clock
        spec = spec_of(tmp_path)
        recovery = Recovery(spec, run_dir, Eyes("job", tmp_path, clock, room.others), clock, Teller(spec, run_dir, clock, Voice()))
        before = IncidentState(incident=1, attempt=0, stage=Stage.SEALED, onset_unix_s=1.8e9, diagnosis=FOUND)
        assert Roster(run_dir, room.others).current().complete()
        clock.advance(20.0)
        nodes["n2"].tell(pack(state("n2", [1], group=run_dir.group_of(0))))
        with pytest.raises(NotRecovered, match="only 2 of 4 nodes are heard"):
            recovery.recover(before, "no bundle is needed for doing nothing", Outlook())
        assert room.asked == []
    finally:
        room.close()


class Busy(CutOff):
    """Another node, whose look took so long that its last word is old."""

    def look(self, group, name, *, full):
        sample = rank(1, process(11), stack(11, ("main", "t.py", 1)))
        return lambda: Sight(ranks=(msgspec.structs.replace(sample, node="n2"),))

    def silent(self, group):
        return {"n2": 9.0, "n3": 30.0}


def test_a_node_that_was_busy_looking_is_not_called_silent(tmp_path):
    eyes = Eyes("job", tmp_path, FakeClock(), Busy())
    eyes.attempt = Attempt(number=0, places=(place(1, "n2"),), exits={}, gone=frozenset(), elsewhere=frozenset({1}))
    assert eyes.look().silent_nodes == {"n3": 30.0}
    assert [sample.rank for sample in eyes.looks[-1].ranks] == [1]


def test_a_node_goes_on_telling_while_it_looks_closely(run_dir, tmp_path):
    opened(run_dir, 0, [1])
    service = NodeService(spec_of(tmp_path), run_dir, "n2", FakeClock())
    looking, done = threading.Event(), threading.Event()

    def look():
        with service._turn:
            looking.set()
            done.wait(60)

    thread = threading.Thread(target=look)
    before = unpack(service.state(), NodeState)
    thread.start()
    looking.wait(60)
    try:
        assert unpack(service.state(), NodeState).light == before.light
    finally:
        done.set()
        thread.join()


def test_a_node_that_is_cut_off_says_nothing_of_where_the_next_attempt_starts(run_dir, tmp_path, monkeypatch):
    opened(run_dir, 0, [1])
    agent = Agent(spec_of(tmp_path, policy="observe"), run_dir, FakeClock(), Voice(), CutOff())
    monkeypatch.setattr(agent.desk, "outlook", lambda: Outlook(not_before_unix_s=2e9))
    agent._fix_resume_point(1)
    assert not (run_dir.path / "resume" / "1.json").exists()


def heard_greeting(others, greeted, until):
    """What a node is told by a greeting, once it is what we wait for."""
    while True:
        others.lines()
        word = unpack(greeted.get(timeout=60), Greeting)
        if until(word):
            return word


def test_a_word_that_stands_is_told_to_nodes_that_were_not_there_when_it_was_said(run_dir, cluster):
    opened(run_dir, 0)
    opened(run_dir, 1, [0], MASTER_PORT="2")
    run_dir.write("resume/1.json", ResumePoint(checkpoint="step-8", step=8, by="shim"))
    greeted = queue.Queue()
    node = cluster.node("n2")
    node.serve(lambda command, body: greeted.put(body) or pack(""))
    node.tell(pack(state("n2", [1])))
    JoinedScheduler(run_dir, cluster.others).repeat(1)
    word = heard_greeting(cluster.others, greeted, lambda word: word.start is not None)
    assert (word.start.start.checkpoint, word.start.group) == ("step-8", '{"MASTER_PORT":"2"}')
    cluster.others.greet_with(newest_good=ResumePoint(checkpoint="step-9", step=9, by="agent"))
    word = heard_greeting(cluster.others, greeted, lambda word: word.newest_good is not None)
    assert (word.newest_good.checkpoint, word.start.start.checkpoint) == ("step-9", "step-8")


def test_a_node_without_a_word_starts_from_what_all_know_to_be_good(run_dir, tmp_path):
    opened(run_dir, 0)
    opened(run_dir, 1, MASTER_PORT="2")
    service = NodeService(spec_of(tmp_path), run_dir, "n2", FakeClock())
    good = ResumePoint(checkpoint="step-9", step=9, by="agent")
    service.answer("hello", pack(Greeting(newest_good=good)))
    assert run_dir.read("newest_good.json", ResumePoint) == good
    start = StartNext(start=NextStart(attempt=7, checkpoint="step-8", step=8), group='{"MASTER_PORT":"2"}', after=None)
    service.answer("hello", pack(Greeting(start=start)))
    assert run_dir.read("resume/1.json", ResumePoint).checkpoint == "step-8"
    other = msgspec.structs.replace(start, start=NextStart(attempt=7, checkpoint="step-6"))
    assert "another word stands there: step-8" in unpack(service.answer("start_next", pack(other)), str)


def test_nodes_whose_clocks_are_an_hour_apart_pause_for_the_same_time(run_dir, cluster, tmp_path):
    opened(run_dir, 1)
    hub, asked = cluster.clock, []
    node = cluster.node("n2")
    node.serve(lambda command, body: (asked.append(body) if command == "start_next" else None) or pack(""))
    node.tell(pack(state("n2", [1])))
    cluster.others.start_next(NextStart(attempt=1, checkpoint="", not_before_unix_s=hub.unix_s() + 60.0), run_dir.group_of(1), None)
    ahead = FakeClock(unix_s=hub.unix_s() + 3600.0)
    NodeService(spec_of(tmp_path), run_dir, "n2", ahead).answer("start_next", asked[0])
    assert run_dir.read("resume/1.json", ResumePoint).not_before_unix_s == pytest.approx(ahead.unix_s() + 60.0)


def test_a_spare_node_keeps_no_word_for_an_attempt_that_it_is_no_part_of(run_dir, tmp_path):
    service = NodeService(spec_of(tmp_path), run_dir, "n5", FakeClock())
    start = StartNext(start=NextStart(attempt=3, checkpoint="step-8"), group=None, after=PORT)
    assert "not known there yet" in unpack(service.answer("start_next", pack(start)), str)
    assert not list((run_dir.path / "resume").iterdir()), "it would stand when this node joins a later attempt"


def test_a_resident_agent_writes_nothing_down_for_ranks_that_it_only_looks_at(run_dir, tmp_path):
    service = NodeService(spec_of(tmp_path, attached=True), run_dir, "n2", FakeClock())
    service.answer("hello", pack(Greeting(newest_good=ResumePoint(checkpoint="x", step=1, by="agent"))))
    assert not (run_dir.path / "newest_good.json").exists()


def test_a_pause_on_any_node_of_the_job_is_a_pause(run_dir, cluster, tmp_path):
    opened(run_dir, 0, [0])
    set_pause(job_switch(run_dir), Pause(since_unix_s=1.8e9, by="ada@n2"))
    there = unpack(NodeService(spec_of(tmp_path), run_dir, "n2", FakeClock()).state(), NodeState)
    assert there.paused.by == "ada@n2"
    lift_pause(job_switch(run_dir), "job")
    cluster.node("n2").tell(pack(state("n2", [1], paused=there.paused)))
    clock, spec = cluster.clock, spec_of(tmp_path)
    eyes = Eyes("job", tmp_path, clock, cluster.others)
    recovery = Recovery(spec, run_dir, eyes, clock, Teller(spec, run_dir, clock, Voice()))
    assert recovery.pause_known() is None, "it holds no rank of this attempt yet"
    eyes.attempt = Roster(run_dir, cluster.others).current()
    assert (recovery.pause_known().by, recovery.paused().by) == ("ada@n2", "ada@n2")


def test_nobody_can_end_one_nodes_part_by_hand(run_dir, tmp_path):
    (tmp_path / "job.json").write_bytes(msgspec.json.encode({"run_dir": str(run_dir.path), **msgspec.to_builtins(spec_of(tmp_path))}))
    with pytest.raises(BadInput, match="from here only the ranks of this one") as refused:
        target_of(str(tmp_path), FakeClock())
    assert "rankpatrol run" in refused.value.help


def test_who_asks_on_another_node_is_told_where_to_ask(tmp_path):
    spec = spec_of(tmp_path, cluster=Seats(node="n1\x1b", first=True, run="r"))
    (tmp_path / "job.json").write_bytes(msgspec.json.encode({"run_dir": "/not/here", **msgspec.to_builtins(spec)}))
    with pytest.raises(BadInput) as refused:
        run_dir_of(tmp_path)
    assert "first node is n1\N{REPLACEMENT CHARACTER}." in refused.value.help


def test_a_rank_that_two_nodes_claim_is_seen_where_it_registered_first(tmp_path):
    class Two(CutOff):
        def light(self, group):
            return Light(processes={0: process(77), 1: process(78)}, activities=(activity(0), activity(1), activity(1)))

        def look(self, group, name, *, full):
            samples = [rank(number, process(70 + number), stack(70, ("main", "t.py", 1))) for number in (0, 1)]
            nodes = [(samples[0], "n2"), (samples[1], "n2"), (samples[1], "n3")]
            return lambda: Sight(ranks=tuple(msgspec.structs.replace(sample, node=node) for sample, node in nodes))

    eyes = Eyes("job", tmp_path, FakeClock(), Two())
    eyes.attempt = Attempt(number=0, places=(place(0, "n1"), place(1, "n2")), exits={}, gone=frozenset(), elsewhere=frozenset({1}))
    assert [each.rank for each in eyes.light()] == [0, 1], "rank 0 is ours, and its process is gone"
    assert list(eyes.processes) == [1]
    assert [(sample.rank, sample.node) for sample in eyes.look().ranks if sample.rank] == [(1, "n2")]


def activity(number):
    return RankActivity(rank=number, ended=False, joined=True, traced=False, stopped=False, main_thread_ticks=0, switches=0, step=None)


def test_copies_of_evidence_on_a_node_have_an_end_and_are_no_condition(run_dir, tmp_path):
    opened(run_dir, 0, [1])
    clock = FakeClock()
    service = NodeService(spec_of(tmp_path), run_dir, "n2", clock)
    look = pack(Look(group=run_dir.group_of(0), full=True, name="../look-1"))
    copies = run_dir.spool / "evidence"
    for _ in range(30):
        clock.advance(1.0)
        service.answer("look", look)
    names = sorted(copy.name for copy in copies.iterdir())
    assert (len(names), names[-1]) == (24, "1800000030-look-1.json")
    for copy in copies.iterdir():
        copy.unlink()
    copies.rmdir()
    copies.write_text("no folder can be made here")
    assert unpack(service.answer("look", look), Seen).ranks


def test_two_answers_at_once_have_two_names(tmp_path):
    offered_as = {}

    class Offers:
        def offer(self, name, path):
            offered_as[name] = path

    small = Parcels(Offers(), tmp_path).in_one_message(lambda command, body: body)
    with ThreadPoolExecutor(max_workers=4) as pool:
        names = list(pool.map(lambda _: small("look", bytes(1 << 20)), range(4)))
    assert len(set(names)) == len(offered_as) == 4


def test_a_job_directory_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    def stale(*_):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(meeting, "wait_for_hub", stale)
    assert "Stale file handle" in meeting._look(tmp_path, "r", FakeClock()).reason


def test_what_is_not_heard_of_another_node_is_not_called_hidden_here(run_dir, tmp_path):
    class Ahead(CutOff):
        """Another node, in the next attempt already: of this one it tells nothing any more."""

        def cut_off(self):
            return False

    said = []

    class Ear(Voice):
        def say(self, what, style="plain"):
            said.append(what)

    agent = Agent(spec_of(tmp_path, policy="observe"), run_dir, FakeClock(), Ear(), Ahead())
    attempt = Attempt(number=0, places=(place(1, "n2"),), exits={}, gone=frozenset(), elsewhere=frozenset({1}))
    agent._eyes.begin(attempt)
    agent._watch(attempt)
    assert not [line for line in said if "hidepid" in line]


def test_a_node_that_is_cut_off_counts_its_incidents_on_from_its_last_agent(run_dir, tmp_path):
    told = {"at_unix_s": 1.8e9, "kind": "alert", "attempt": 0, "incident": 3}
    (run_dir.spool / "events.jsonl").write_text(json.dumps(told) + "\n")
    seats = Seats(node="n2", first=False, run="r", meet_at="local:nowhere")
    follower = Follower(spec_of(tmp_path, cluster=seats), seats, run_dir, FakeClock(), Voice())
    follower._judge_alone(0.0)
    assert follower._alone.desk.next_number() == 4, "another one's bundle would be taken for the new evidence"


def test_no_name_that_a_node_tells_keeps_a_bundle_from_being_sealed(run_dir, tmp_path, monkeypatch):
    class Odd(CutOff):
        def hosts(self):
            return {"..": {"../../etc/x": 1, "memory": 2}, "n 2/é": {"": 3}, "n3": Missing("no answer")}

    monkeypatch.setattr(sealing, "host_facts", lambda *_, **__: {"memory": 0})
    told = sealing.Sealer(spec_of(tmp_path), run_dir, FakeClock(), Odd())._hosts([], {})
    assert sorted(told) == ["_/_.._etc_x", "_/memory", "memory", "n3/facts", "n_2_é/_"]
    writer = BundleWriter(tmp_path / "bundle", FakeClock())
    for name in told:
        writer.add(f"host/{name}.json", b"{}")


def test_a_node_that_is_cut_off_looks_at_its_crash_once_and_lets_nobody_go(run_dir, tmp_path, monkeypatch):
    opened(run_dir, 0, [1])
    run_dir.write("exits/0.1.json", RankExit(exit_status=1, by_request=False, ended_unix_s=1.8e9))
    looks = []
    for others, released in ((CutOff(), False), (Alone(), True)):
        agent = Agent(spec_of(tmp_path, policy="observe"), run_dir, FakeClock(), Voice(), others)
        monkeypatch.setattr(agent, "_crash", looks.append)
        for _ in range(3):
            agent.glance()
        assert (run_dir.path / "released.0.json").exists() is released, "whoever hears the others releases it"
    assert len(looks) == 2


def test_what_a_cut_off_node_makes_of_its_ranks_is_not_remembered_of_any_node(run_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_LEMONS", str(tmp_path / "lemons.json"))
    opened(run_dir, 0, [1])
    judged = IncidentState(incident=1, attempt=0, stage=Stage.JUDGED, onset_unix_s=1.8e9, diagnosis=FOUND)
    for others, remembered in ((CutOff(), False), (Alone(), True)):
        clock, spec = FakeClock(), spec_of(tmp_path)
        eyes = Eyes("job", tmp_path, clock, others)
        eyes.attempt = Roster(run_dir, others).current()
        recovery = Recovery(spec, run_dir, eyes, clock, Teller(spec, run_dir, clock, Voice()))
        recovery.remember(judged)
        assert recovery.lemons.settled(60)
        assert bool(list(tmp_path.glob("lemons.json*"))) is remembered
