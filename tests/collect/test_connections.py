"""TCP connections, of this very process."""

import contextlib
import os
import socket

import pytest

from rankpatrol.collect.connections import connections_of
from rankpatrol.core.records import Missing


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::")])
def test_the_bytes_that_a_connection_received_and_sent_are_counted(family, host):
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
    # The kernel counts the one that opens a connection as a byte of it.
    assert found[f"127.0.0.1:{port}"].acked_bytes in {777, 778}
    assert found[f"127.0.0.1:{own}"].acked_bytes in {0, 1}


def test_what_nobody_takes_is_not_counted_as_gone():
    """The far side's buffer is full: more was written than has arrived."""
    written = 0
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0],
    ):
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                written += client.send(bytes(1 << 16))
        assert 0 < _acked(f"127.0.0.1:{client.getsockname()[1]}") < written


def test_a_process_that_is_gone_is_missing():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert isinstance(connections_of([pid])[pid], Missing)


def _acked(local):
    return next(each.acked_bytes for each in connections_of([os.getpid()])[os.getpid()] if each.local == local)
