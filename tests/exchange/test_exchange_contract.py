"""What every exchange promises, whatever carries it."""

import hashlib
import os
import threading
import time

import pytest
from exchange_subjects import eventually

from clocks import FakeClock
from rankpatrol.core.errors import BadInput, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.exchange.files import PART_BYTES
from rankpatrol.exchange.offset import measure_offset
from rankpatrol.exchange.wire import MOST_BYTES
from rankpatrol.system.clock import SystemClock

HOSTILE = ("a.b *>", "*", ">", "", "x y\r\nPUB z 1", "ünï", "\udcff\x00", "_INBOX.>", "=2E", "node-1.cluster.local", "$SYS")


def test_hub_hears_the_newest_state_of_each_node(places):
    hub, one, two = places.hub(), places.node("n1"), places.node("n2")
    one.tell(b"old")
    one.tell(b"new")
    two.tell(b"other")
    eventually(lambda: {name: heard.state for name, heard in hub.states().items()} == {"n1": b"new", "n2": b"other"})
    assert one.states() == {}


def test_a_hub_that_comes_later_hears_the_newest_state_that_was_told_before(places):
    node = places.node("n1")
    node.tell(b"1")
    node.tell(b"2")
    hub = places.hub()
    assert eventually(lambda: hub.states().get("n1")).state == b"2"


def test_the_hub_is_a_node_as_well(places):
    hub = places.hub()
    hub.tell(b"mine")
    eventually(lambda: hub.states()["hub"].state == b"mine" if "hub" in hub.states() else False)


def test_states_are_dated_by_the_hub_clock(places):
    clock = FakeClock(mono_s=77.0)
    hub, node = places.hub(clock=clock), places.node("n1")
    node.tell(b"x")
    assert eventually(lambda: hub.states().get("n1")).heard_at_mono == 77.0


def test_a_node_answers_by_command_and_body(places):
    hub, node = places.hub(), places.node("n1")
    node.serve(lambda command, body: f"{command}:".encode() + body[::-1])
    assert hub.ask("n1", "capture", b"abc", 5) == b"capture:cba"
    assert hub.ask("n1", "", b"", 5) == b":"
    assert hub.ask("n1", "odd name.*", b"\x00\xff", 5) == b"odd name.*:\xff\x00"


def test_nobody_there_is_known_at_once(places):
    hub = places.hub()
    began = time.monotonic()
    answer = hub.ask("n9", "capture", b"", 30)
    assert isinstance(answer, Missing)
    assert "nobody named n9" in answer.reason
    assert time.monotonic() - began < 5


def test_a_node_that_left_is_not_there(places):
    hub, node = places.hub(), places.node("n1")
    node.serve(lambda command, body: b"here")
    assert hub.ask("n1", "x", b"", 5) == b"here"
    node.close()
    assert not node.connected()
    eventually(lambda: isinstance(hub.ask("n1", "x", b"", 5), Missing))
    assert isinstance(node.ask("hub", "x", b"", 5), Missing)
    node.tell(b"after the end")
    node.close()


def test_a_node_that_does_not_answer_is_missing_after_the_deadline_and_not_later(places):
    hub, node = places.hub(), places.node("n1")
    release = threading.Event()
    node.serve(lambda command, body: b"late" if release.wait(15) else b"")
    began = time.monotonic()
    answer = hub.ask("n1", "capture", b"", 0.3)
    took_s = time.monotonic() - began
    release.set()
    assert isinstance(answer, Missing)
    assert "0.3 s" in answer.reason
    assert 0.25 < took_s < 3


def test_one_slow_answer_does_not_hold_up_the_next(places):
    hub, node = places.hub(), places.node("n1")
    release = threading.Event()
    node.serve(lambda command, body: b"slow" if command == "slow" and release.wait(15) else b"quick")
    slow = []
    asking = threading.Thread(target=lambda: slow.append(hub.ask("n1", "slow", b"", 15)))
    asking.start()
    assert hub.ask("n1", "other", b"", 5) == b"quick"
    release.set()
    asking.join(10)
    assert slow == [b"slow"]


@pytest.mark.parametrize(
    ("raised", "said"), [(ValueError("no such rank"), "ValueError: no such rank"), (BadInput("no bundle"), "no bundle")]
)
def test_what_an_answer_raises_is_the_reason(places, raised, said):
    hub, node = places.hub(), places.node("n1")

    def answer(command, body):
        raise raised

    node.serve(answer)
    assert hub.ask("n1", "capture", b"", 5) == Missing(f"n1: {said}")


def test_a_node_that_serves_nothing_yet_says_so(places):
    hub = places.hub()
    places.node("n1")
    answer = hub.ask("n1", "capture", b"", 5)
    assert isinstance(answer, Missing)
    assert "takes no commands yet" in answer.reason


def test_an_answer_or_an_order_larger_than_a_message_is_refused_with_its_size(places):
    hub, node = places.hub(), places.node("n1")
    node.serve(lambda command, body: bytes(int(body)))
    most = MOST_BYTES - 1
    assert hub.ask("n1", "x", str(most).encode(), 5) == bytes(most)
    answer = hub.ask("n1", "x", str(most + 1).encode(), 5)
    assert isinstance(answer, Missing)
    assert str(most + 1) in answer.reason
    order = hub.ask("n1", "x", bytes(MOST_BYTES + 1), 5)
    assert isinstance(order, Missing)
    assert str(MOST_BYTES + 1) in order.reason


def test_a_state_larger_than_a_message_is_not_told_and_said(places):
    hub, node = places.hub(), places.node("n1")
    node.tell(bytes(MOST_BYTES + 1))
    assert "larger than one message" in node.trouble()
    node.tell(b"small")
    eventually(lambda: hub.states().get("n1") and hub.states()["n1"].state == b"small")


def test_scatter_asks_side_by_side(places):
    hub = places.hub()
    together = threading.Barrier(3)
    for name in ("n1", "n2", "n3"):

        def answer(command, body, name=name):
            together.wait(10)  # broken unless all three are asked at the same time
            return name.encode()

        places.node(name).serve(answer)
    answers = hub.scatter(["n1", "n2", "n3", "n9"], "capture", b"", 10)
    assert {name: answers[name] for name in ("n1", "n2", "n3")} == {"n1": b"n1", "n2": b"n2", "n3": b"n3"}
    assert isinstance(answers["n9"], Missing)
    assert hub.scatter([], "capture", b"", 10) == {}


def test_scatter_has_one_deadline_for_all(places):
    hub = places.hub()
    release = threading.Event()
    names = [f"n{number}" for number in range(5)]
    for name in names:
        places.node(name).serve(lambda command, body: b"late" if release.wait(15) else b"")
    began = time.monotonic()
    answers = hub.scatter(names, "capture", b"", 0.5)
    took_s = time.monotonic() - began
    release.set()
    assert all(isinstance(answer, Missing) for answer in answers.values())
    assert took_s < 2


def test_each_node_can_be_asked_something_of_its_own_and_waited_for_as_long_as_it_deserves(places):
    hub = places.hub()
    release = threading.Event()
    places.node("n1").serve(lambda command, body: body + b"!")
    places.node("n2").serve(lambda command, body: body + b"?")
    places.node("late").serve(lambda command, body: b"late" if release.wait(15) else b"")
    began = time.monotonic()
    answers = hub.ask_each({"n1": b"a", "n2": b"b", "late": b"c"}, "capture", {"n1": 10.0, "n2": 10.0, "late": 0.3})
    took_s = time.monotonic() - began
    release.set()
    assert (answers["n1"], answers["n2"]) == (b"a!", b"b?")
    assert isinstance(answers["late"], Missing)
    assert took_s < 2
    large = hub.ask_each({"n1": b"x" * (MOST_BYTES + 1), "n2": b"b"}, "capture", {"n1": 5.0, "n2": 5.0})
    assert isinstance(large["n1"], Missing)
    assert large["n2"] == b"b?"


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_of_a_node_is_that_node_alone(places, name):
    hub, hostile, bystander = places.hub(), places.node(name), places.node("bystander")
    asked = []
    bystander.serve(lambda command, body: asked.append(command) or b"")
    hostile.serve(lambda command, body: b"it is me")
    hostile.tell(b"my state")
    assert hub.ask(name, "who", b"", 5) == b"it is me"
    eventually(lambda: name in hub.states())
    assert set(hub.states()) == {name}
    assert asked == []


def test_a_name_of_many_bytes_is_refused(places):
    with pytest.raises(UsageProblem):
        places.node("x" * 256)
    assert isinstance(places.hub().ask("x" * 5000, "who", b"", 5), Missing)


def test_every_node_tells_its_wall_clock(places):
    hub, began_unix_s = places.hub(), SystemClock().unix_s()
    places.node("n1", clock=FakeClock(unix_s=began_unix_s + 500))
    offset = measure_offset(hub, "n1", SystemClock(), 10)
    took_s = SystemClock().unix_s() - began_unix_s  # the node's clock stands still, and falls behind by that
    assert 500 - took_s - offset.within_s <= offset.offset_s <= 500 + offset.within_s


class TestFiles:
    @pytest.mark.parametrize("size", [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 20 * PART_BYTES + 7])
    def test_a_file_is_copied_whole(self, places, tmp_path, size):
        hub, node = places.hub(), places.node("n1")
        source, into = tmp_path / "source", tmp_path / "into"
        source.write_bytes(os.urandom(size))
        node.offer("stack.json", source)
        assert hub.fetch("n1", "stack.json", into, 15) == size
        assert hashlib.sha256(into.read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["into", "source"]

    def test_only_what_is_offered_can_be_fetched(self, places, tmp_path):
        hub, node = places.hub(), places.node("n1")
        (tmp_path / "offered").write_bytes(b"x")
        (tmp_path / "secret").write_bytes(b"y")
        node.offer("offered", tmp_path / "offered")
        for name in ("secret", "../secret", str(tmp_path / "secret"), "", "."):
            copied = hub.fetch("n1", name, tmp_path / "into", 10)
            assert isinstance(copied, Missing)
            assert "does not offer" in copied.reason
        assert not (tmp_path / "into").exists()

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", ".hidden", "a\0b"])
    def test_what_is_no_plain_name_is_not_offered(self, places, tmp_path, name):
        with pytest.raises(UsageProblem):
            places.node("n1").offer(name, tmp_path)

    def test_what_is_no_file_is_not_copied(self, places, tmp_path):
        hub, node = places.hub(), places.node("n1")
        os.mkfifo(tmp_path / "pipe")
        for name, path in {"pipe": tmp_path / "pipe", "folder": tmp_path, "gone": tmp_path / "gone"}.items():
            node.offer(name, path)
            assert isinstance(hub.fetch("n1", name, tmp_path / "into", 10), Missing)
        assert not (tmp_path / "into").exists()

    def test_an_earlier_copy_stays_until_a_new_one_is_whole(self, places, tmp_path):
        hub, node = places.hub(), places.node("n1")
        (tmp_path / "into").write_bytes(b"earlier")
        assert isinstance(hub.fetch("n1", "nothing", tmp_path / "into", 10), Missing)
        assert (tmp_path / "into").read_bytes() == b"earlier"
        (tmp_path / "source").write_bytes(b"new")
        node.offer("log", tmp_path / "source")
        assert hub.fetch("n1", "log", tmp_path / "into", 10) == 3
        assert (tmp_path / "into").read_bytes() == b"new"

    def test_a_folder_that_refuses_is_the_reason(self, places, tmp_path):
        hub, node = places.hub(), places.node("n1")
        (tmp_path / "source").write_bytes(b"x")
        node.offer("log", tmp_path / "source")
        copied = hub.fetch("n1", "log", tmp_path / "no" / "such" / "folder", 10)
        assert isinstance(copied, Missing)
        assert "No such file" in copied.reason

    def test_a_node_that_is_not_there_gives_no_file(self, places, tmp_path):
        copied = places.hub().fetch("n9", "log", tmp_path / "into", 10)
        assert isinstance(copied, Missing)
        assert "nobody named n9" in copied.reason
