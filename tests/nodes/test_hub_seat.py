"""One hub on an exchange: the second hears of the first, says so and goes."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from test_two_nodes import _no_broker

from clocks import FakeClock
from rankpatrol.agent.nodes.wire import pack
from rankpatrol.agent.resident.hub_seat import ASKS_S, Claim, HubSeat, HubTaken
from rankpatrol.exchange.open import open_exchange, parse_address
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.server import start_server

needs_broker = pytest.mark.skipif(bool(_no_broker()), reason=_no_broker())


class Room:
    """An exchange in this process, on which other hubs' claims can be made."""

    def __init__(self, name):
        self.clock = FakeClock()
        self.place = open_exchange(parse_address(f"local:{name}"), "hub", role=Role.HUB, clock=self.clock)
        self.seat = HubSeat(self.place, "hub", self.clock)

    def take(self):
        while not self.seat.taken():
            self.clock.advance(0.1)

    def claim(self, own, seated_for_s, *, asks=False):
        self.clock.advance(0.1)
        self.place.tell(pack(Claim(own=own, host="other", seated_for_s=seated_for_s, asks=asks)))


@pytest.fixture
def room(request):
    made = Room(request.node.name)
    yield made
    made.place.close()


def test_a_seat_that_nobody_claims_is_taken(room):
    before_s = room.clock.mono_s()
    room.take()
    assert room.clock.mono_s() - before_s == pytest.approx(ASKS_S, abs=0.5)
    for _ in range(100):
        room.clock.advance(0.5)
        room.seat.mind()


def test_who_came_later_goes_and_who_came_first_stays(room):
    room.take()
    room.clock.advance(50.0)
    room.claim("a", seated_for_s=10.0)
    room.seat.mind()
    room.claim("a", seated_for_s=1000.0)
    with pytest.raises(HubTaken) as gone:
        room.seat.mind()
    assert "on other, judges the jobs of this exchange; this one came later" in str(gone.value)


def test_who_asks_is_answered_at_once(room):
    room.take()
    room.clock.advance(0.2)
    room.seat.mind()
    room.claim("a", seated_for_s=0.0, asks=True)
    asked = room.place.states()["hub"]
    room.clock.advance(0.5)
    room.seat.mind()
    assert room.place.states()["hub"] != asked


def test_what_is_no_claim_does_not_matter(room):
    room.place.tell(b"garbage")
    room.take()


@pytest.mark.timeout(60)
def test_a_hub_that_waits_for_its_broker_says_so_and_can_be_ended(tmp_path):
    env = {**os.environ, "RANKPATROL_EXCHANGE": "nats://x@127.0.0.1:1", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "rankpatrol", "hub", "--jobs-dir", str(tmp_path / "a")]
    hub = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert b"waiting for the exchange" in hub.stderr.readline()
    finally:
        hub.send_signal(signal.SIGTERM)
        assert hub.wait(20) == 0
        hub.stderr.close()


def listens(hub):
    """What it says of its exchange comes before or after, as it happens."""
    return any(b"the hub listens" in line for line in hub.stderr)


@needs_broker
@pytest.mark.timeout(90)
def test_a_second_hub_on_a_real_exchange_refuses_and_the_first_goes_on(tmp_path):
    server, address = start_server(tmp_path / "broker")
    env = {**os.environ, "RANKPATROL_EXCHANGE": address.url(secret=True), "TMPDIR": str(tmp_path), "RANKPATROL_LEMONS": ""}
    said = (tmp_path / "said.txt").open("wb")
    command = [sys.executable, "-m", "rankpatrol", "hub", "--jobs-dir"]
    first = subprocess.Popen([*command, str(tmp_path / "a")], env=env, stdout=said, stderr=subprocess.PIPE, start_new_session=True)
    try:
        assert listens(first)
        second = subprocess.run([*command, str(tmp_path / "b")], env=env, capture_output=True, timeout=60, check=False)
        assert second.returncode == 3
        assert b"another hub" in second.stderr
        assert b"Stop the other one, or let it be" in second.stderr
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 0
        third = subprocess.Popen([*command, str(tmp_path / "b")], env=env, stdout=said, stderr=subprocess.PIPE, start_new_session=True)
        try:
            assert listens(third), "the seat is free again"
        finally:
            third.send_signal(signal.SIGTERM)
            assert third.wait(20) == 0
            third.stderr.close()
    finally:
        if first.poll() is None:
            first.kill()
        first.wait()
        first.stderr.close()
        said.close()
        server.stop()


@needs_broker
@pytest.mark.timeout(60)
def test_of_two_hubs_that_come_at_once_one_stays(tmp_path):
    from rankpatrol.system.clock import SystemClock

    server, address = start_server(tmp_path / "broker")
    places = [open_exchange(address, "hub", role=Role.HUB) for _ in range(2)]
    outcomes = []

    def come(place):
        try:
            seat, clock = HubSeat(place, "hub", SystemClock()), SystemClock()
            while not seat.taken():
                clock.sleep(0.05)
            outcomes.append("seated")
        except HubTaken:
            outcomes.append("gone")

    threads = [threading.Thread(target=come, args=(place,)) for place in places]
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        assert sorted(outcomes) == ["gone", "seated"]
    finally:
        for place in places:
            place.close()
        server.stop()
