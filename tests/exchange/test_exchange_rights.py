"""Resident agents: whatever a node tries, the real broker refuses what is not its own."""

import asyncio
import contextlib
import socket
import ssl
import threading

import pytest
from exchange_subjects import WITHIN_S, Places, eventually
from nats.aio.client import Client
from nats.errors import Error as NatsError

from clocks import FakeClock
from rankpatrol.core.errors import BadInput, NoPermission, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.key_files import key_files_in, tls_context
from rankpatrol.exchange.keys import KeysWanted, init_keys
from rankpatrol.exchange.open import connected_within, open_exchange
from rankpatrol.exchange.port import Role
from rankpatrol.exchange.server import start_resident_server
from rankpatrol.exchange.subjects import orders_to, state_of, states_of_all, to_node
from rankpatrol.system.clock import SystemClock

pytestmark = pytest.mark.timeout(60)
NODES = ("n1", "n2", "gpu-01.cluster_x")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    init_keys(folder, KeysWanted(nodes=NODES, hosts=("127.0.0.1", "localhost")), SystemClock())
    return folder


@pytest.fixture(scope="module")
def address(keys, tmp_path_factory):
    server, address = start_resident_server(tmp_path_factory.mktemp("broker"), keys, host="127.0.0.1", port=0)
    yield address
    server.stop()


@pytest.fixture
def places(keys, address):
    opened = Places(address)
    opened.node = lambda name, role=Role.NODE: Places.node(opened, name, role, keys=files(keys, name))
    yield opened
    opened.close()


def files(keys, name):
    return key_files_in(keys / (name if name in {"hub", "server"} else f"nodes/{name}"))


async def confirmed(client):
    """The first of two pings may overtake what was sent before."""
    await client.flush(5)
    await client.flush(5)


async def let_go(client):
    """A client that was refused keeps its socket."""
    with contextlib.suppress(OSError, NatsError):
        await client.close()
    if client._transport is not None:
        client._transport.close()
        with contextlib.suppress(OSError):
            await client._transport.wait_closed()


class Stranger:
    """A client without any manners, with whatever certificate a test gives it."""

    def __init__(self, address, context, **options):
        self._address, self._context, self._options = address, context, options
        self.refused, self.heard = [], []

    def try_out(self, attempt):
        """Run `attempt(client, self)` on a connection, to its end and the broker's confirmation."""

        async def run():
            client = Client()

            async def note(problem):
                self.refused.append(str(problem).lower())

            try:
                await client.connect(
                    servers=[f"tls://{self._address.host}:{self._address.port}"],
                    tls=self._context,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    error_cb=note,
                    **self._options,
                )
                await attempt(client, self)
                await confirmed(client)
            finally:
                await let_go(client)

        asyncio.run(asyncio.wait_for(run(), 20))

    async def listen(self, client, subject):
        async def hear(message):
            self.heard.append((message.subject, message.data))

        await client.subscribe(subject, cb=hear)
        await confirmed(client)


def context_of(keys, name):
    return tls_context(files(keys, name))


def test_all_that_agents_do_is_allowed(places, tmp_path):
    hub = places.hub()
    for name in NODES:
        node = places.node(name)
        node.serve(lambda command, body, name=name: name.encode())
        node.tell(b"fine")
    assert hub.scatter(NODES, "capture", b"", 10) == {name: name.encode() for name in NODES}
    eventually(lambda: set(hub.states()) == set(NODES))
    (tmp_path / "log").write_bytes(bytes(3_000_000))
    node.offer("log", tmp_path / "log")
    assert hub.fetch(NODES[-1], "log", tmp_path / "copy", 15) == 3_000_000
    absent = hub.ask("n9", "x", b"", 10)
    assert isinstance(absent, Missing)
    assert "nobody named n9" in absent.reason
    assert hub.trouble() == ""


def test_a_state_before_the_hub_comes_is_not_lost(places):
    node = places.node("n1")
    node.tell(b"early")
    hub = places.hub()
    assert eventually(lambda: hub.states().get("n1")).state == b"early"


@pytest.mark.parametrize("subject", [state_of("n2"), state_of("hub"), "rankpatrol.anything", "$SYS.REQ.SERVER.PING", "_INBOX_hub.x.y"])
def test_a_node_cannot_speak_for_another(places, keys, address, subject):
    hub = places.hub()
    stranger = Stranger(address, context_of(keys, "n1"))

    async def attempt(client, _):
        await client.publish(subject, b"I am n2, and well")
        await client.publish(state_of("n1"), b"mine")

    stranger.try_out(attempt)
    assert any("permissions violation for publish" in refused for refused in stranger.refused)
    eventually(lambda: "n1" in hub.states())
    assert set(hub.states()) == {"n1"}


@pytest.mark.parametrize(
    "subject", [orders_to("n2"), "rankpatrol.to.>", "rankpatrol.to.*.do.*", ">", states_of_all(), "_INBOX_hub.>", "_INBOX.>", "_INBOX_n2.>"]
)
def test_a_node_cannot_listen_to_what_is_not_its_own(places, keys, address, subject):
    hub, node = places.hub(), places.node("n2")
    node.serve(lambda command, body: b"done")
    stranger = Stranger(address, context_of(keys, "n1"))

    async def attempt(client, self):
        await self.listen(client, subject)
        node.tell(b"secret")
        answer = await asyncio.get_running_loop().run_in_executor(None, hub.ask, "n2", "kill", b"job 7", 10)
        assert answer == b"done"

    stranger.try_out(attempt)
    assert any("permissions violation for subscription" in refused for refused in stranger.refused)
    assert stranger.heard == []


@pytest.mark.parametrize("target", ["n2", "hub", "n1"])
def test_a_node_cannot_give_orders(places, keys, target):
    hub, victim, node = places.hub(), places.node("n2"), places.node("n1")
    asked = []
    for each in (hub, victim, node):
        each.serve(lambda command, body: asked.append(command) or b"done")
    answer = node.ask(target, "end", b"job 7", 10)
    assert isinstance(answer, Missing)
    assert "refuses" in answer.reason
    assert "permissions violation" in node.trouble()
    assert asked == []
    assert hub.ask("n2", "end", b"job 7", 10) == b"done"


def test_a_node_cannot_lead_anothers_answer_to_an_order(places, keys, address):
    """By asking to be answered at the place where another node takes its orders."""
    hub, victim = places.hub(), places.node("n2")
    asked = []
    victim.serve(lambda command, body: asked.append(command) or b"done")
    stranger = Stranger(address, context_of(keys, "n1"))

    async def attempt(client, _):
        await client.publish(state_of("n1"), b"end", reply=to_node("n2", "do", "end"))

    stranger.try_out(attempt)
    eventually(lambda: "n1" in hub.states())
    assert hub.ask("n2", "look", b"", 10) == b"done"
    assert asked == ["look"]


def test_a_node_answers_an_order_once(places, keys, address):
    hub = places.hub()
    stranger = Stranger(address, context_of(keys, "n1"))
    ready = threading.Event()
    answers = []
    asking = threading.Thread(target=lambda: ready.wait(WITHIN_S) and answers.append(hub.ask("n1", "look", b"", 10)))
    asking.start()

    async def attempt(client, self):
        answered = asyncio.Event()

        async def answer(message):
            await client.publish(message.reply, b"+first")
            await client.publish(message.reply, b"+second")
            answered.set()

        await client.subscribe(orders_to("n1"), cb=answer)
        await confirmed(client)
        ready.set()
        await asyncio.wait_for(answered.wait(), WITHIN_S)

    stranger.try_out(attempt)
    asking.join(WITHIN_S)
    assert answers == [b"first"]
    assert any("permissions violation for publish" in refused for refused in stranger.refused)


def test_a_certificate_says_who_it_is_whatever_name_is_claimed(places, keys, address):
    hub, victim = places.hub(), places.node("n2")
    asked = []
    victim.serve(lambda command, body: asked.append(command) or b"done")
    stranger = Stranger(address, context_of(keys, "n1"), user="CN=hub", password="")

    async def attempt(client, _):
        await client.publish(to_node("n2", "do", "end"), b"")

    stranger.try_out(attempt)
    assert any("permissions violation for publish" in refused for refused in stranger.refused)
    assert hub.ask("n2", "look", b"", 10) == b"done"
    assert asked == ["look"]


def test_a_place_of_another_cannot_be_taken(keys, address):
    taken = open_exchange(address, "n2", role=Role.NODE, keys=files(keys, "n1"))
    eventually(lambda: "permissions violation" in taken.trouble())
    assert not taken.connected()
    taken.close()
    as_hub = open_exchange(address, "n1", role=Role.HUB, keys=files(keys, "n1"))
    eventually(lambda: "permissions violation" in as_hub.trouble())
    assert not as_hub.connected()
    as_hub.close()


def nobody_comes_in(address, context):
    with pytest.raises((OSError, NatsError, ssl.SSLError, TimeoutError)):
        Stranger(address, context).try_out(lambda client, _: confirmed(client))


def test_without_a_certificate_nobody_comes_in(keys, address):
    context = ssl.create_default_context(cafile=str(keys / "hub" / "ca.pem"))
    nobody_comes_in(address, context)


def test_without_tls_nobody_comes_in(address):
    with socket.create_connection((address.host, address.port), 5) as plain:
        plain.settimeout(10)
        assert plain.recv(4096).startswith(b"INFO ")
        plain.sendall(b'CONNECT {"verbose":false,"user":"CN=hub","lang":"x","version":"1"}\r\nPING\r\n')
        said = b""
        while chunk := plain.recv(4096):
            said += chunk
    assert b"PONG" not in said


def test_a_certificate_of_another_authority_is_refused(keys, address, tmp_path):
    init_keys(tmp_path, KeysWanted(nodes=("n1",), hosts=("127.0.0.1",)), SystemClock())
    context = tls_context(files(tmp_path, "n1"))
    context.load_verify_locations(keys / "hub" / "ca.pem")
    nobody_comes_in(address, context)


def test_a_broker_of_another_authority_is_not_believed(address, tmp_path):
    init_keys(tmp_path, KeysWanted(nodes=("n1",)), SystemClock())
    node = open_exchange(address, "n1", role=Role.NODE, keys=files(tmp_path, "n1"))
    eventually(lambda: "certificate verify failed" in node.trouble())
    assert not node.connected()
    node.close()


def test_a_broker_under_another_name_is_not_believed(keys, address):
    elsewhere = Address(scheme="tls", host="127.0.0.2", port=address.port)
    node = open_exchange(elsewhere, "n1", role=Role.NODE, keys=files(keys, "n1"))
    eventually(lambda: node.trouble() not in {"", "not connected yet"})
    assert not node.connected()
    node.close()


def test_the_brokers_own_certificate_is_nobodys(keys, address):
    nobody_comes_in(address, context_of(keys, "server"))


def test_a_node_that_was_removed_is_shut_out(keys, address, tmp_path):
    """Its certificate is still one of our authority's."""
    init_keys(tmp_path, KeysWanted(nodes=("n1", "n2"), hosts=("127.0.0.1",)), SystemClock())
    removed = tmp_path / "away"
    (tmp_path / "nodes" / "n2").rename(removed)
    made = init_keys(tmp_path, KeysWanted(nodes=("n1",)), SystemClock())
    assert made.known == ("n1",)
    server, address = start_resident_server(tmp_path / "run", tmp_path, host="127.0.0.1", port=0)
    try:
        nobody_comes_in(address, tls_context(key_files_in(removed)))
        node = open_exchange(address, "n1", role=Role.NODE, keys=files(tmp_path, "n1"))
        assert connected_within(node, WITHIN_S), node.trouble()
        node.close()
    finally:
        server.stop()


def test_tls_and_keys_go_together(keys):
    with pytest.raises(UsageProblem, match="needs a certificate"):
        open_exchange(Address(scheme="tls", host="h", port=1), "n1", role=Role.NODE)
    with pytest.raises(UsageProblem, match="needs no certificate"):
        open_exchange(Address(scheme="nats", host="h", port=1), "n1", role=Role.NODE, keys=files(keys, "n1"))


class TestKeyFiles:
    def test_a_key_that_others_can_read_is_refused(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1",)), SystemClock())
        (tmp_path / "nodes" / "n1" / "key.pem").chmod(0o640)
        with pytest.raises(NoPermission, match="by others"):
            tls_context(files(tmp_path, "n1"))

    def test_files_that_do_not_go_together_are_refused(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1", "n2")), SystemClock())
        (tmp_path / "nodes" / "n1" / "key.pem").write_bytes((tmp_path / "nodes" / "n2" / "key.pem").read_bytes())
        with pytest.raises(BadInput, match="do not go together"):
            tls_context(files(tmp_path, "n1"))

    def test_files_that_are_not_there_are_told(self, tmp_path):
        with pytest.raises(BadInput, match="No such file"):
            tls_context(key_files_in(tmp_path))


class TestInitKeys:
    def test_all_is_private(self, keys):
        for path in keys.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path

    def test_what_is_there_stays_and_what_is_new_is_added(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1",), hosts=("hub.cluster", "10.0.0.1")), SystemClock())
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
        (tmp_path / "nats.conf").write_text("# changed by its owner\n")
        made = init_keys(tmp_path, KeysWanted(nodes=("n2",)), SystemClock())
        assert made.made == ("nodes/n2",)
        assert set(made.kept) == {"server", "hub", "nodes/n1"}
        assert made.known == ("n1", "n2")
        assert made.hosts == ("hub.cluster", "10.0.0.1")
        assert {path: path.read_bytes() for path in before} == before
        assert (tmp_path / "nats.conf").read_text() == "# changed by its owner\n"
        assert "CN=n2" in (tmp_path / "demands.conf").read_text()

    def test_what_ends_soon_is_made_anew(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1",), lasts_days=100), FakeClock())
        assert init_keys(tmp_path, KeysWanted(nodes=("n1",)), FakeClock(unix_s=1.8e9 + 69 * 86400)).made == ()
        assert set(init_keys(tmp_path, KeysWanted(nodes=("n1",)), FakeClock(unix_s=1.8e9 + 71 * 86400)).made) == {
            "server",
            "hub",
            "nodes/n1",
        }

    def test_new_hosts_make_the_server_anew_alone(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1",)), SystemClock())
        assert init_keys(tmp_path, KeysWanted(nodes=("n1",), hosts=("other",)), SystemClock()).made == ("server",)

    def test_without_the_authoritys_key_nothing_is_made(self, tmp_path):
        init_keys(tmp_path, KeysWanted(nodes=("n1",)), SystemClock())
        (tmp_path / "authority" / "key.pem").unlink()
        with pytest.raises(BadInput, match="authority"):
            init_keys(tmp_path, KeysWanted(nodes=("n2",)), SystemClock())
        assert not (tmp_path / "nodes" / "n2").exists()

    @pytest.mark.parametrize("node", ["", "hub", "server", "../n1", "a/b", ".hidden", "a b", 'a"b', "n*", "x" * 65, "CN=n1", "n1\n"])
    def test_names_that_cannot_be_are_refused_before_anything_is_made(self, tmp_path, node):
        with pytest.raises(UsageProblem):
            init_keys(tmp_path / "keys", KeysWanted(nodes=("n1", node)), SystemClock())
        assert not (tmp_path / "keys").exists()

    @pytest.mark.parametrize("host", ["", "a b", 'a"b', "-x", "a/b", "h\n"])
    def test_hosts_that_cannot_be_are_refused(self, tmp_path, host):
        with pytest.raises(UsageProblem):
            init_keys(tmp_path / "keys", KeysWanted(nodes=("n1",), hosts=(host,)), SystemClock())

    def test_a_folder_that_cannot_be_made_is_told(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(BadInput, match="cannot be written"):
            init_keys(tmp_path / "file" / "keys", KeysWanted(nodes=("n1",)), SystemClock())
