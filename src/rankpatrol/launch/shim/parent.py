"""Starts the rank, then waits for what comes first: its end, a signal, a request of the agent, a deadline.

Whatever of the patrol is missing or broken (its folder, its disk, its agent), the rank runs and its end is passed on all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import time
from typing import Any, Callable

from rankpatrol.launch.shim.desk import Desk
from rankpatrol.launch.shim.kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    descendants,
    end_as,
    prctl,
    prepare_rank,
    reap,
)
from rankpatrol.launch.shim.output import Outlet, RankLog, drain, say

ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
FORWARDED = (*ENDING, "SIGUSR1", "SIGUSR2", "SIGWINCH")
# torchrun kills a rank 30 s after its SIGTERM (PContext.close): we are done before that, descendants included.
TERM_AFTER_INT_S, KILL_AFTER_S = 10.0, 25.0
# A rank whose launcher is gone is nobody's: all of it is gone within 5 s.
LOST_LAUNCHER_KILL_S = 2.0
# `rankpatrol run` sets these for torchrun alone; the rank sees the value its user had, or none.
LENT_VARIABLES = ("PYTHON_EXEC", "PET_MAX_RESTARTS")


class Shim:
    """The parent of one rank."""

    def __init__(self, desk: Desk | None) -> None:
        self.by_request = False
        self._desk = desk
        self._rank: subprocess.Popen[bytes] | None = None
        self._log: RankLog | None = None
        self._outlets: list[Outlet] = []
        self._escalation: list[tuple[float, str]] = []  # (monotonic time, signal), soonest first
        self._launcher_pid = os.getppid()
        self._selector = selectors.DefaultSelector()

    def start(self, command: list[str], environment: dict[str, str]) -> int:
        """Start the rank in a session of its own, as torchrun starts its workers, and return its pid. Raises OSError."""
        self._outlets = [Outlet(1), Outlet(2)]
        self._rank = subprocess.Popen(
            command,
            env=environment,
            stdout=self._outlets[0].rank_fd,
            stderr=self._outlets[1].rank_fd,
            preexec_fn=prepare_rank,  # ruff: ignore[PLW1509] - no other thread runs yet
            start_new_session=True,
        )
        if self._desk is not None:
            self._log = self._open_log(self._desk)
        for outlet in self._outlets:
            outlet.pump(self._log)
        return self._rank.pid

    def _open_log(self, desk: Desk) -> RankLog | None:
        try:
            return RankLog(desk.log_path())
        except OSError as problem:
            say(f"the log of rank {desk.rank} is not kept: {problem}")
            return None

    def watch_signals(self) -> None:
        """Hear signals as bytes in the selector. What our user ignores (nohup) stays ignored."""
        ours, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        for name in (*FORWARDED, "SIGCHLD"):
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_signals(os.read(ours, 64)))

    def listen(self, path: str) -> None:
        """Take the agent's requests on a socket in the run directory, which only its owner can enter. Raises OSError."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(path)
        server.listen(4)
        server.setblocking(False)
        self._selector.register(server, selectors.EVENT_READ, lambda: self._serve(server))

    def wait(self) -> int:
        """The rank's exit status, negative for a signal; signals, requests and deadlines are served meanwhile."""
        rank = self._running()
        while rank.poll() is None:
            now = time.monotonic()
            if self._escalation and self._escalation[0][0] <= now:
                self._send(self._escalation.pop(0)[1])
            pause_s = self._escalation[0][0] - now if self._escalation else 5.0
            for key, _ in self._selector.select(min(max(pause_s, 0.01), 5.0)):
                serve: Callable[[], None] = key.data
                serve()
        return rank.returncode

    def sweep(self) -> None:
        """End what the dead rank left behind: stuck loader processes hold its sockets and GPU memory, and its peers wait on."""
        for name, wait_s in (("SIGTERM", 1.0), ("SIGKILL", 2.0)):
            for pid in descendants(os.getpid()):
                # Our own descendant, not reaped by anyone but us: its pid cannot be another's yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, getattr(signal, name))
            until = time.monotonic() + wait_s
            while descendants(os.getpid()) and time.monotonic() < until:
                reap()
                time.sleep(0.02)
            reap()

    def drain(self) -> None:
        """Pass on the rank's last words."""
        drain(self._outlets, self._log)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._rank is not None, "start() comes first"  # ruff: ignore[S101] - a programming error
        return self._rank

    def _on_signals(self, numbers: bytes) -> None:
        for name in (signal.Signals(number).name for number in numbers):
            if name == "SIGWINCH":
                for outlet in self._outlets:
                    outlet.resize()
            if name != "SIGCHLD":
                self._send(name)
            if name in ENDING and not self._escalation:
                self._escalation = self._steps_after(name)

    def _steps_after(self, name: str) -> list[tuple[float, str]]:
        now = time.monotonic()
        if os.getppid() != self._launcher_pid:
            return [(now + LOST_LAUNCHER_KILL_S, "SIGKILL")]
        last = (now + KILL_AFTER_S, "SIGKILL")
        return [last] if name == "SIGTERM" else [(now + TERM_AFTER_INT_S, "SIGTERM"), last]

    def _serve(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(1.0)
                reply = {"ok": self._obey(connection)}
                connection.sendall(json.dumps(reply).encode())

    def _obey(self, connection: socket.socket) -> bool:
        """The one request there is: end the rank. Heard only from our own user and from root (unix(7), SO_PEERCRED)."""
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        request: dict[str, Any] = json.loads(connection.recv(4096).decode())
        if uid not in {0, os.getuid()} or request.get("do") != "end":
            return False
        if not self.by_request:
            self.by_request = True
            self._send("SIGTERM")
            self._escalation = [(time.monotonic() + float(request.get("grace_s", 10.0)), "SIGKILL")]
        return True

    def _send(self, name: str) -> None:
        """Signal the rank's process group, as torchrun would have. A stopped group hears SIGTERM only after SIGCONT."""
        for each in (name, "SIGCONT") if name == "SIGTERM" else (name,):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._running().pid, getattr(signal, each))


def rank_environment(desk: Desk | None, checkpoint: str) -> dict[str, str]:
    """The rank's environment: what was lent to torchrun is taken back, and it is told where to resume from."""
    environment = {name: value for name, value in os.environ.items() if name not in LENT_VARIABLES}
    for name in LENT_VARIABLES:
        users = environment.pop("RANKPATROL_USER_" + name, None)
        if users is not None:
            environment[name] = users
    if desk is not None and desk.spec.get("checkpoints"):
        environment["RANKPATROL_RESUME_FROM"] = checkpoint
    return environment


def _take_place(run_dir: str, rank: str) -> tuple[Desk | None, str]:
    """The rank's desk and its checkpoint; without a usable run directory the rank trains all the same."""
    try:
        desk = Desk(run_dir, int(rank))
        return desk, desk.resume_from()
    except (OSError, ValueError) as problem:
        say(f"rank {rank} trains without patrol: {problem}")
        return None, ""


def main(command: list[str]) -> int:
    """Run one rank to its end, and end as it ended."""
    run_dir, rank = os.environ.get("RANKPATROL_RUN_DIR"), os.environ.get("RANK")
    if not run_dir or rank is None:
        os.execvp(command[0], command)  # ruff: ignore[S606] - no rank: be as if we were not here
    launcher = os.getppid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != launcher:
        return 1  # torchrun died before we could ask to be told
    desk, checkpoint = _take_place(run_dir, rank)
    shim = Shim(desk)
    shim.watch_signals()
    words = [word.replace("{checkpoint}", checkpoint) for word in command]
    try:
        pid = shim.start(words, rank_environment(desk, checkpoint))
    except OSError as problem:
        say(f"cannot start {words[0]}: {problem.strerror}")
        return 127 if isinstance(problem, FileNotFoundError) else 126
    if desk is not None:
        _report(rank, lambda: desk.register(pid))
        _report(rank, lambda: shim.listen(desk.socket_path()))
    status = shim.wait()
    if status != 0 or shim.by_request:
        shim.sweep()
    if desk is not None:
        _report(rank, lambda: desk.ended(status, by_request=shim.by_request))
    shim.drain()
    # A rank that we ended never counts as finished, even if it answers SIGTERM with exit(0).
    end_as(-signal.SIGTERM if shim.by_request and status == 0 else status)
    return 1


def _report(rank: str, tell: Callable[[], None]) -> None:
    """Tell the agent something; that it cannot be told harms nothing."""
    try:
        tell()
    except OSError as problem:
        say(f"rank {rank} is not seen by the patrol: {problem}")
