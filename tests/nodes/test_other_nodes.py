"""The other nodes as the judging agent sees them: in its own time and numbers, and what is not heard is not waited for."""

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.agent.nodes.heard import silent_after_s
from rankpatrol.agent.nodes.joined import JoinedScheduler
from rankpatrol.agent.nodes.others import Alone
from rankpatrol.agent.nodes.remote import OtherNodes
from rankpatrol.agent.nodes.wire import VERSION, Ended, Light, NodeState, NotOurs, Part, Seen, offer_of, offered, pack, state_of, unpack
from rankpatrol.agent.roster import Roster
from rankpatrol.cli.job_state import NodeRow
from rankpatrol.cli.status import say_nodes
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Marks
from rankpatrol.core.starts import NextStart
from rankpatrol.exchange.open import Address, open_exchange
from rankpatrol.exchange.port import Role
from rankpatrol.launch.rundir import RankExit, RankPlace, RunDir
from rankpatrol.system.files import write_atomic
from scenes import process, rank, stack

GROUP = '{"MASTER_PORT":"1"}'


def place(number, node, attempt=0):
    return RankPlace(
        attempt=attempt,
        rank=number,
        local_rank=0,
        world_size=4,
        node=node,
        shim_pid=9,
        shim_start_ticks=9,
        pid=10,
        start_ticks=10,
        torchrun_restarts=0,
        scheduler_restarts=0,
        started_unix_s=0.0,
    )


def state(node, ranks, *, at_mono_s=0.0, at_unix_s=0.0, group=GROUP, **facts):
    part = Part(
        number=facts.pop("number", 0), group=group, places=tuple(place(each, node) for each in ranks), exits=facts.pop("exits", {}), gone=()
    )
    plain = {
        "version": VERSION,
        "release": "0",
        "node": node,
        "at_mono_s": at_mono_s,
        "at_unix_s": at_unix_s,
        "parts": (part,),
        "light": Light(),
    }
    return NodeState(**{**plain, **facts})


class Cluster:
    """A hub, and nodes that answer what they are told to."""

    def __init__(self, folder, room):
        self.clock, self.folder, self.room = FakeClock(), folder, Address(scheme="local", room=room)
        self.hub = open_exchange(self.room, "n1", role=Role.HUB, clock=self.clock)
        self.others = OtherNodes(self.hub, "n1", folder, self.clock)
        self.asked = []
        self.nodes = {}

    def node(self, name, answers=None):
        exchange = open_exchange(self.room, name, role=Role.NODE, clock=self.clock)

        def answer(command, body):
            if command != "hello":
                self.asked.append((name, command))
            return pack((answers or {})[command]) if command in (answers or {}) else pack("")

        exchange.serve(answer)
        self.nodes[name] = exchange
        return exchange

    def close(self):
        for each in (self.hub, *self.nodes.values()):
            each.close()


@pytest.fixture
def cluster(tmp_path, request):
    made = Cluster(tmp_path, request.node.name)
    yield made
    made.close()


def test_a_nodes_ranks_join_the_attempt_of_their_group(cluster, tmp_path):
    for room in ("claims", "ranks", "openings", "exits"):
        (tmp_path / room).mkdir()
    run_dir = RunDir(tmp_path)
    write_atomic(tmp_path / "claims" / "3.0.json", b"{}")
    run_dir.write("ranks/3.0.json", place(0, "n1", attempt=3))
    write_atomic(tmp_path / "openings" / "3.json", b'{"group": {"MASTER_PORT": "1", "restarts": 7}}')
    cluster.node("n2").tell(pack(state("n2", [2, 1], number=5, exits={2: RankExit(exit_status=1, by_request=False, ended_unix_s=50.0)})))
    cluster.node("n3").tell(pack(state("n3", [3], group='{"MASTER_PORT":"2"}')))
    attempt = Roster(run_dir, cluster.others).current()
    assert [(each.rank, each.node, each.attempt) for each in attempt.places] == [(0, "n1", 3), (1, "n2", 3), (2, "n2", 3)]
    assert attempt.elsewhere == {1, 2}
    assert not attempt.complete(), "n3 has begun another attempt"
    assert [record.rank for record in attempt.records(tmp_path)] == [0], "only ours are looked at in our /proc"
    assert attempt.exits[2].exit_status == 1


def test_clocks_that_are_an_hour_apart_do_not_order_ends_wrongly(cluster):
    cluster.clock.advance(100.0)
    ahead_s = 3600.0
    theirs = cluster.clock.unix_s() + ahead_s
    ended = RankExit(exit_status=1, by_request=False, ended_unix_s=theirs - 2.0)
    marks = Marks(steps=5, last_step_at_mono_s=7.0, phase="train_step", phase_since_mono_s=6.0, groups=())
    light = Light(marks={1: marks})
    cluster.node("n2").tell(pack(state("n2", [1], at_mono_s=8.0, at_unix_s=theirs, exits={1: ended}, light=light)))
    (part,) = cluster.others.parts(GROUP)
    assert part.exits[1].ended_unix_s == pytest.approx(cluster.clock.unix_s() - 2.0)
    ours = cluster.others.light(GROUP).marks[1]
    assert ours.last_step_at_mono_s == pytest.approx(cluster.clock.mono_s() - 1.0), "a second before it was told"
    assert cluster.others.lines()[0].clock_ahead_s == pytest.approx(ahead_s)


def test_a_silent_node_is_told_and_its_ranks_are_missing_not_gone(cluster):
    node = cluster.node("n2")
    node.tell(pack(state("n2", [1])))
    assert cluster.others.silent(GROUP) == {}
    node.close()
    cluster.clock.advance(silent_after_s(1.0) + 1)
    assert list(cluster.others.silent(GROUP)) == ["n2"]
    sight = cluster.others.look(GROUP, "a", full=False)()
    assert isinstance(sight.ranks[0].process, Missing)
    assert sight.ranks[0].exit_status is None
    report = cluster.others.end_attempt(GROUP, 0.0)
    assert (report.ended, list(report.beyond)) == ((), [1]), "nobody can end it from here, and that is no failure of the deed"


def test_a_node_that_refuses_to_end_its_ranks_is_a_failure(cluster):
    cluster.node("n2", {"end_attempt": Ended(failed={1: "its shim refused"})}).tell(pack(state("n2", [1])))
    assert cluster.others.end_attempt(GROUP, 0.0).failed == {1: "its shim refused"}


def test_all_nodes_are_told_how_the_next_attempt_starts(cluster):
    for name in ("n2", "n3"):
        cluster.node(name).tell(pack(state(name, [1])))
    assert cluster.others.start_next(NextStart(attempt=1, checkpoint="c"), None, GROUP) == {}
    assert sorted(cluster.asked) == [("n2", "start_next"), ("n3", "start_next")]


def test_a_node_that_is_heard_only_later_is_told_the_start_that_stands(cluster, tmp_path):
    for room in ("openings", "resume"):
        (tmp_path / room).mkdir()
    joined = JoinedScheduler(RunDir(tmp_path), cluster.others)
    cluster.node("n2").tell(pack(state("n2", [1])))
    joined.resume_from(NextStart(attempt=0, checkpoint="c"))
    joined.remind()
    assert cluster.asked == [("n2", "start_next")], "who knows it is not told again"
    cluster.node("n3").tell(pack(state("n3", [2])))
    joined.remind()
    assert sorted(cluster.asked[1:]) == [("n2", "start_next"), ("n3", "start_next")]
    joined.remind()
    assert len(cluster.asked) == 3


def test_looks_come_in_our_time(cluster):
    cluster.clock.advance(500.0)
    sample = rank(1, process(11), stack(11, ("main", "t.py", 1)))
    told = msgspec.structs.replace(sample, marks=Marks(steps=1, last_step_at_mono_s=9.0, phase="x", phase_since_mono_s=9.0, groups=()))
    cluster.node("n2", {"look": Seen(at_mono_s=10.0, ranks=(told,), kills={11: "Killed"})}).tell(pack(state("n2", [1])))
    sight = cluster.others.look(GROUP, "a", full=True)()
    assert sight.ranks[0].marks.last_step_at_mono_s == pytest.approx(cluster.clock.mono_s() - 1.0)
    assert sight.kills == {11: "Killed"}


def test_a_new_agent_remembers_whose_ranks_are_in_the_job(cluster):
    cluster.node("n2").tell(pack(state("n2", [1, 2])))
    assert cluster.others.parts(GROUP)
    again = OtherNodes(
        open_exchange(Address(scheme="local", room="empty"), "n1", role=Role.HUB, clock=cluster.clock), "n1", cluster.folder, cluster.clock
    )
    assert [each.rank for each in again.parts(GROUP)[0].places] == [1, 2]
    assert again.wait_for_all(0.0) == ("n2",), "known, and not heard yet"


def test_an_attempt_that_its_node_speaks_of_no_more_is_gone(cluster):
    node = cluster.node("n2")
    node.tell(pack(state("n2", [1])))
    assert cluster.others.parts(GROUP)[0].gone == ()
    cluster.clock.advance(1.0)
    node.tell(pack(state("n2", [1], group="another")))
    assert cluster.others.parts(GROUP)[0].gone == (1,)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"j",
        b"jnull",
        b"j{}",
        b"z",
        b"zgarbage",
        b"x{}",
        b"j[1",
        b'j{"version": 1}',
        b"\xff\xfe",
        pack({"a": 1}),
        b"j" + b"[" * 100_000,
    ],
)
def test_foreign_words_are_refused_with_a_reason(foreign, cluster):
    assert isinstance(state_of(foreign), Missing)
    cluster.node("n2").tell(foreign)
    assert cluster.others.parts(GROUP) == ()


def test_a_foreign_answer_is_missing_whatever_was_asked(cluster):
    cluster.node("n2", {command: [1] for command in ("native", "look", "recordings", "host", "end_attempt")}).tell(pack(state("n2", [1])))
    assert isinstance(cluster.others.native(GROUP, 1), Missing)
    assert isinstance(cluster.others.recordings(GROUP)[1], Missing)
    assert isinstance(cluster.others.look(GROUP, "a", full=True)().ranks[0].process, Missing)
    assert list(cluster.others.end_attempt(GROUP, 0.0).failed) == [1]


def test_another_version_is_said_to_be_one(cluster):
    node = cluster.node("n2")
    node.tell(pack(state("n2", [1])))
    cluster.others.parts(GROUP)
    cluster.clock.advance(1.0)
    node.tell(pack(msgspec.structs.replace(state("n2", [1]), version=VERSION + 1, release="9.9")))
    cluster.others.parts(GROUP)
    assert "rankpatrol 9.9 there speaks version" in cluster.others.lines()[0].problem


def test_a_bomb_is_not_unpacked():
    import zlib

    squeezed = zlib.compressobj(9)
    data = b"z" + squeezed.compress(b" " * (300 << 20)) + squeezed.flush()
    with pytest.raises(NotOurs):
        unpack(data, NodeState)


def test_what_is_too_large_for_a_message_comes_as_a_file(cluster, tmp_path):
    answer = pack("x" * 100)
    (tmp_path / "large").write_bytes(answer)
    node = open_exchange(cluster.room, "n2", role=Role.NODE, clock=cluster.clock)
    cluster.nodes["n2"] = node
    node.offer("answer-1", tmp_path / "large")
    node.serve(lambda command, body: offer_of("answer-1") if command == "native" else pack(""))
    node.tell(pack(state("n2", [1])))
    assert cluster.others.native(GROUP, 1) == "x" * 100
    assert offered(answer) is None


def test_alone_there_is_nobody():
    assert (Alone().parts(GROUP), Alone().over(), Alone().silent(GROUP)) == ((), True, {})


def test_status_says_what_is_wrong_with_nodes_and_no_more():
    fine = NodeRow(node="n2", heard_ago_s=0.7, clock_ahead_s=0.003)
    assert say_nodes(()) == []
    assert say_nodes((fine,)) == ["other nodes: n2"]
    off = NodeRow(node="n3", heard_ago_s=40.0, clock_ahead_s=-3600.0, problem="rankpatrol 9 there speaks version 2")
    assert say_nodes((fine, off)) == [
        "other nodes: n2, n3",
        "n3 has told nothing for 40 s",
        "n3: rankpatrol 9 there speaks version 2",
        "the clock of n3 is 1 h 0 min behind the first node's",
    ]
