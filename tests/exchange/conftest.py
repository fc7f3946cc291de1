"""One exchange for each test, inside this process or through a real broker on loopback."""

import secrets

import pytest
from exchange_subjects import Places

from rankpatrol.exchange.address import Address
from rankpatrol.exchange.server import start_server


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory):
    server, address = start_server(tmp_path_factory.mktemp("broker"))
    yield address
    server.stop()


@pytest.fixture(params=["local", "nats"])
def places(request):
    local = Address(scheme="local", room=secrets.token_hex(4))
    opened = Places(local if request.param == "local" else request.getfixturevalue("broker_address"))
    yield opened
    opened.close()


@pytest.fixture
def own_broker(tmp_path):
    """A broker that a test may kill: (server, places)."""
    server, address = start_server(tmp_path / "run")
    opened = Places(address)
    yield server, opened
    opened.close()
    server.stop()
