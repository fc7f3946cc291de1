"""A job's own broker: its secret, its life, and what happens to everybody when it dies."""

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from exchange_subjects import WITHIN_S, Places, eventually

from rankpatrol.core.records import Missing
from rankpatrol.exchange import nats as nats_module
from rankpatrol.exchange import server as server_module
from rankpatrol.exchange import server_config as server_config_module
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.loop_thread import shared_loop
from rankpatrol.exchange.open import connected_within, open_exchange
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.server import ServerFailed, ServerMissing, find_server, start_server

pytestmark = pytest.mark.timeout(60)


async def count_tasks():
    return len(asyncio.all_tasks())


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_secret_is_in_a_private_file_and_on_no_command_line(tmp_path):
    server, address = start_server(tmp_path / "run")
    try:
        assert len(address.token) >= 32
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "run" / "nats.conf").stat().st_mode) == 0o600
        assert address.token in (tmp_path / "run" / "nats.conf").read_text()
        for name in ("cmdline", "environ"):
            assert address.token.encode() not in Path(f"/proc/{server.pid}/{name}").read_bytes()
        assert address.token not in (tmp_path / "run" / "nats.log").read_text()
    finally:
        server.stop()


def test_two_jobs_have_two_secrets_and_ports(tmp_path):
    one, first = start_server(tmp_path / "one")
    two, second = start_server(tmp_path / "two")
    one.stop()
    two.stop()
    assert first.token != second.token
    assert first.port != second.port


@pytest.mark.parametrize("token", ["", "wrong"])
def test_whoever_does_not_know_the_secret_stays_outside(own_broker, token):
    _, places = own_broker
    real = places.address
    stranger = open_exchange(Address(scheme="nats", host=real.host, port=real.port, token=token), "n1", role=Role.HUB)
    eventually(lambda: "Authorization" in stranger.trouble())
    assert not stranger.connected()
    answer = stranger.ask("n2", "x", b"", 5)
    assert isinstance(answer, Missing)
    assert "not connected" in answer.reason
    assert "Authorization" in answer.reason
    stranger.close()


def test_stop_ends_it(tmp_path):
    server, _ = start_server(tmp_path)
    pid = server.pid
    server.stop()
    assert not alive(pid)
    assert server.pid is None
    server.stop()


def test_it_goes_with_whoever_keeps_it(tmp_path):
    keeper = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import signal
                from pathlib import Path
                from rankpatrol.exchange.server import start_server
                server, _ = start_server(Path({str(tmp_path)!r}))
                print(server.pid, flush=True)
                signal.pause()
            """),
        ],
        stdout=subprocess.PIPE,
    )
    pid = int(keeper.stdout.readline())
    assert alive(pid)
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    eventually(lambda: not alive(pid))


def test_a_port_that_is_taken_is_told(tmp_path, broker_address):
    with pytest.raises(ServerFailed, match="address already in use"):
        start_server(tmp_path, port=broker_address.port)


def test_a_host_that_is_not_ours_is_told(tmp_path):
    with pytest.raises(ServerFailed):
        start_server(tmp_path, host="192.0.2.1")


def test_a_broker_that_follows_one_of_a_dead_agent_is_found_where_it_was(tmp_path):
    server, address = start_server(tmp_path)
    server.stop()
    again, same = start_server(tmp_path)
    again.stop()
    assert same == address
    assert stat.S_IMODE((tmp_path / "broker.json").stat().st_mode) == 0o600


def test_where_its_port_is_taken_by_now_it_takes_another(tmp_path):
    server, address = start_server(tmp_path)
    server.stop()
    with socket.create_server((address.host, address.port)):
        again, other = start_server(tmp_path)
    again.stop()
    assert other.port != address.port
    assert other.token == address.token


def test_a_folder_with_odd_characters_is_no_trouble(tmp_path):
    server, _ = start_server(tmp_path / 'a "b" \\ $HOME ünï\tx')
    server.stop()


def test_without_a_server_it_is_said_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(find_server()).name == "nats-server"  # the wheel's own

    def nothing(name):
        raise server_module.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(server_module.importlib.metadata, "distribution", nothing)
    with pytest.raises(ServerMissing) as missing:
        find_server()
    assert "'.[cluster]'" in missing.value.help


def test_the_one_on_path_comes_first(tmp_path, monkeypatch):
    mine = tmp_path / "nats-server"
    mine.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    mine.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_server() == str(mine)
    with pytest.raises(ServerFailed, match="it ended with 3: no such option"):
        start_server(tmp_path / "run")


class TestOutage:
    def test_a_broker_that_died_is_started_again_and_all_come_back_with_their_newest_state(self, own_broker):
        server, places = own_broker
        hub, node = places.hub(), places.node("n1")
        node.serve(lambda command, body: b"here")
        node.tell(b"before")
        eventually(lambda: "n1" in hub.states())
        first = server.pid
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not node.connected() and not hub.connected())
        assert node.trouble()
        for number in range(50):
            node.tell(f"during {number}".encode())
        eventually(lambda: hub.states()["n1"].state == b"during 49", within_s=30)
        assert server.pid not in {None, first}
        assert (hub.trouble(), node.trouble()) == ("", "")
        assert eventually(lambda: hub.ask("n1", "x", b"", 5)) == b"here"

    def test_nothing_older_than_the_newest_is_told_after_an_outage(self, own_broker):
        server, places = own_broker
        heard = []

        class Listening(dict):
            def __setitem__(self, name, value):
                heard.append(value.state)
                super().__setitem__(name, value)

        hub, node = places.hub(), places.node("n1")
        hub._wire._heard = Listening()
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not node.connected() and not hub.connected())
        for state in (b"1", b"2", b"3"):
            node.tell(state)
        assert connected_within(hub, 30)
        node.tell(b"4")
        eventually(lambda: b"4" in heard, within_s=30)
        assert not {b"1", b"2"} & set(heard)

    def test_who_waits_for_an_answer_learns_that_the_connection_is_lost(self, own_broker):
        server, places = own_broker
        hub, node = places.hub(), places.node("n1")
        asked, release = threading.Event(), threading.Event()

        def answer(command, body):
            asked.set()
            release.wait(30)
            return b"to a dead hub"

        node.serve(answer)
        got = []
        waiting = threading.Thread(target=lambda: got.append(hub.ask("n1", "capture", b"", 50)))
        waiting.start()
        assert asked.wait(WITHIN_S)
        os.kill(server.pid, signal.SIGKILL)
        waiting.join(WITHIN_S)
        assert len(got) == 1
        assert "the connection was lost" in got[0].reason
        release.set()  # its answer is dropped
        assert connected_within(hub, 30)
        node.serve(lambda command, body: b"again")
        assert connected_within(node, 30)
        assert hub.ask("n1", "capture", b"", 10) == b"again"

    def test_a_copy_that_is_cut_off_leaves_nothing_behind(self, own_broker, tmp_path):
        server, places = own_broker
        hub, node = places.hub(), places.node("n1")
        with (tmp_path / "source").open("wb") as out:
            out.truncate(3 << 30)
        node.offer("core", tmp_path / "source")
        into = tmp_path / "copies" / "core"
        into.parent.mkdir()
        got = []
        copying = threading.Thread(target=lambda: got.append(hub.fetch("n1", "core", into, 50)))
        copying.start()
        eventually(lambda: any(path.stat().st_size for path in into.parent.iterdir()))
        os.kill(server.pid, signal.SIGKILL)
        copying.join(WITHIN_S)
        assert len(got) == 1
        assert isinstance(got[0], Missing)
        assert list(into.parent.iterdir()) == []

    def test_a_place_is_closed_while_no_broker_is_there(self, tmp_path):
        node = open_exchange(Address(scheme="nats", host="127.0.0.1", port=9), "n1", role=Role.NODE)
        node.tell(b"x")
        eventually(lambda: "refused" in node.trouble() or "Connect call failed" in node.trouble())
        assert node.states() == {}
        node.close()
        assert not node.connected()

    def test_outages_leave_nothing_behind(self, own_broker):
        server, places = own_broker
        hub, node = places.hub(), places.node("n1")
        node.serve(lambda command, body: b"here")

        def holdings():
            tasks = asyncio.run_coroutine_threadsafe(count_tasks(), shared_loop()).result(WITHIN_S)
            return tasks, len(list(Path("/proc/self/fd").iterdir()))

        def settled():
            return hub.connected() and node.connected() and hub.ask("n1", "x", b"", 10) == b"here"

        eventually(settled)
        eventually(lambda: holdings() == holdings())
        before = holdings()
        for _ in range(2):
            node.tell(bytes(500_000))
            os.kill(server.pid, signal.SIGKILL)
            node.tell(bytes(500_000))
            eventually(lambda: not node.connected() and not hub.connected())
            eventually(settled, within_s=30)
        eventually(lambda: holdings() <= before)

    def test_a_broker_that_stands_still_is_left_and_found_again(self, own_broker, monkeypatch):
        monkeypatch.setattr(nats_module, "_CONFIRM_S", 0.3)
        server, places = own_broker
        hub, node = places.hub(), places.node("n1")
        os.kill(server.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert isinstance(hub.ask("n1", "x", b"", 0.3), Missing)
            assert time.monotonic() - began < 5
            node.tell(b"newest")
            eventually(lambda: not node.connected())
            assert "could not be told" in node.trouble() or "connection was lost" in node.trouble()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        eventually(lambda: hub.states().get("n1"), within_s=40)

    def test_what_a_broker_with_a_lower_limit_does_not_take_is_told(self, tmp_path, monkeypatch):
        monkeypatch.setattr(server_config_module, "MOST_BYTES", 1000)
        server, address = start_server(tmp_path / "run")
        places = Places(address)
        try:
            hub, node = places.hub(), places.node("n1")
            node.serve(lambda command, body: bytes(5000))
            answer = hub.ask("n1", "x", b"", 10)
            assert isinstance(answer, Missing)
            assert "larger than this broker takes (max_payload 1000)" in answer.reason
            order = hub.ask("n1", "x", bytes(5000), 10)
            assert isinstance(order, Missing)
            node.tell(bytes(5000))
            eventually(lambda: "max_payload 1000" in node.trouble())
            node.tell(b"small")
            eventually(lambda: hub.states().get("n1"))
            assert node.connected()
        finally:
            places.close()
            server.stop()
