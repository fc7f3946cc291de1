"""The socket on which the agent asks for the one thing there is: end this rank. Nobody who connects can hold the shim up."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import time
from typing import Callable

_LONGEST_GRACE_S = 3600.0
_CONNECTIONS_MOST = 16


def end_request(message: bytes) -> float | None:
    """The grace in seconds that an `end` request asks for, or None where this is no such request."""
    try:
        request = json.loads(message.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(request, dict) or request.get("do") != "end":
        return None
    grace_s = request.get("grace_s", 10.0)
    return float(grace_s) if isinstance(grace_s, (int, float)) and 0 <= grace_s <= _LONGEST_GRACE_S else None


class ControlSocket:
    """Listens in the run directory, which only its owner can enter. Raises OSError where it cannot."""

    def __init__(self, path: str, selector: selectors.BaseSelector, end: Callable[[float], None]) -> None:
        self._selector, self._end = selector, end
        self._open: list[socket.socket] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(path)
        self._server.listen(64)
        self._server.setblocking(False)
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            time.sleep(0.05)  # no descriptor to spare: the caller stays in the queue, and we do not spin
            return
        connection.setblocking(False)
        self._open.append(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._serve(connection))
        if len(self._open) > _CONNECTIONS_MOST:
            self._forget(self._open[0])

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            grace_s = end_request(connection.recv(4096))
            obeyed = grace_s is not None and _is_ours(connection)
            if grace_s is not None and obeyed:
                self._end(grace_s)
            connection.sendall(json.dumps({"ok": obeyed}).encode())
        self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._selector.unregister(connection)
            connection.close()


def _is_ours(connection: socket.socket) -> bool:
    """True for our own user and for root (unix(7), SO_PEERCRED)."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in {0, os.getuid()}
