"""Serves metrics on a port, on threads of its own: whoever scrapes is never waited for, and a port that is taken is tried again."""

import contextlib
import io
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import make_wsgi_app

from rankpatrol.metrics.address import Address
from rankpatrol.metrics.collector import Source, registry_of

# Prometheus asks one at a time; more than this at once is somebody who holds us up.
_AT_ONCE_MOST = 8
_REQUEST_S = 10.0
_TRY_AGAIN_S = 30.0
_LOOKS_EVERY_S = 1.0


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """The agent's voice is for people."""

    def get_stderr(self) -> Any:
        """Nor does anybody want to read that a scraper was slow."""
        return io.StringIO()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, place: tuple[str, int]) -> None:
        self.address_family = family
        self._free = threading.BoundedSemaphore(_AT_ONCE_MOST)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        """As HTTPServer's, without asking a name server for our own name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread to spare
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked has gone."""


class MetricsServer:
    """Listens until it is closed. `tell` is called from its thread: once where it listens, once where it cannot."""

    def __init__(self, address: Address, source: Source, tell: Callable[[str, str], None]) -> None:
        self._address, self._source, self._tell = address, source, tell
        self._closed = threading.Event()
        self._server: _Server | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Give the port back."""
        self._closed.set()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _run(self) -> None:
        told = False
        while not self._closed.is_set():
            try:
                server = self._bound()
            except (OSError, UnicodeError) as problem:  # a host's name may be none that can be asked for
                if not told:
                    why = getattr(problem, "strerror", None) or problem
                    self._tell(f"metrics are not served: {self._address}: {why}. {_SAID}", "alert")
                told = True
                self._closed.wait(_TRY_AGAIN_S)
                continue
            self._serve(server)
            return

    def _serve(self, server: _Server) -> None:
        with self._lock:
            if self._closed.is_set():
                server.server_close()
                return
            self._server = server
        self._tell(f"metrics: http://{Address(self._address.host, server.server_port)}/metrics", "plain")
        with contextlib.suppress(OSError):
            server.serve_forever(_LOOKS_EVERY_S)

    def _bound(self) -> _Server:
        found = socket.getaddrinfo(self._address.host, self._address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        server = _Server(family, (str(place[0]), int(place[1])))
        server.set_app(make_wsgi_app(registry_of(self._source)))
        return server


_SAID = (
    "The patrol goes on, and the port is tried again every 30 s. Another job's agent may have it: "
    "several jobs on one machine are better read from files (metrics-textfile)"
)
