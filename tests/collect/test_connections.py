"""TCP connections, of this very process."""

import os
import socket

import pytest

from rankpatrol.collect.connections import connections_of
from rankpatrol.core.records import Missing


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_the_bytes_that_a_connection_received_are_counted(family, host):
    with (
        socket.create_server((host, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as server,
        socket.create_connection(("127.0.0.1", server.getsockname()[1])) as client,
        server.accept()[0] as accepted,
    ):
        accepted.sendall(b"x" * 777)
        client.recv(777, socket.MSG_WAITALL)
        port, own = server.getsockname()[1], client.getsockname()[1]
        mine = connections_of([os.getpid()])[os.getpid()]
    found = {each.local: each for each in mine}
    assert found[f"127.0.0.1:{own}"].remote == f"127.0.0.1:{port}"
    assert found[f"127.0.0.1:{own}"].received_bytes == 777
    assert found[f"127.0.0.1:{port}"].received_bytes == 0


def test_a_process_that_is_gone_is_missing():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert isinstance(connections_of([pid])[pid], Missing)
