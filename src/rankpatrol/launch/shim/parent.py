"""Starts the rank, then waits for what comes first: its end, a signal, a request of the agent, a deadline.

Whatever of the patrol is missing or broken (its folder, its disk, its agent), the rank runs and its end is passed on all the same.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Callable, ContextManager, Mapping

from rankpatrol.launch.shim.control import ControlSocket
from rankpatrol.launch.shim.deadlines import DEADLINES, Deadlines, as_patient_as, shutdown_timeout_s
from rankpatrol.launch.shim.desk import Desk, is_left_behind
from rankpatrol.launch.shim.kernel import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    end_as,
    end_stuck_loaders,
    hold_standard_streams,
    prctl,
    prepare_rank,
    reap,
    sweep,
)
from rankpatrol.launch.shim.marks import Held, with_probe
from rankpatrol.launch.shim.output import Outlet, drain, say
from rankpatrol.launch.shim.placing import LAUNCHERS, TORCHRUN, place_of
from rankpatrol.launch.shim.rank_environment import environment_of, proc_words, rank_environment
from rankpatrol.launch.shim.rank_log import RankLog

ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
# Until the rank is there to hear them, these wait; an ending signal ends the shim at once.
HELD_AT_START = ("SIGUSR1", "SIGUSR2", "SIGWINCH")
FORWARDED = (*ENDING, *HELD_AT_START)
# How soon a launcher that went without a word, or another size of the terminal, is noticed.
_LOOK_UP_S = 1.0
_HOLD_POLL_S = 0.05


class Shim:
    """The parent of one rank."""

    def __init__(self, launcher_pid: int, deadlines: Deadlines, run_dir: str) -> None:
        self.by_request = False
        self.launcher_lost = False
        self._told_to_end = False
        self._run_dir, self._left_behind = run_dir, False
        self._launcher_pid, self._deadlines = launcher_pid, deadlines
        self._rank: subprocess.Popen[bytes] | None = None
        self._log: RankLog | None = None
        self._outlets: list[Outlet] = []
        self._escalation: list[tuple[float, str]] = []  # (monotonic time, signal), soonest first
        self._selector = selectors.DefaultSelector()

    def start(self, command: list[str], environment: dict[str, str], log_path: str | None, inherited: tuple[int, ...] = ()) -> int:
        """Start the rank in a session of its own, as torchrun starts its workers, and return its pid. Raises OSError.

        It inherits these descriptors.
        """
        # One stream where there was one (a terminal, 2>&1): two would lose the order of output and errors, and cut lines into each other.
        self._outlets = [Outlet(1)] if os.path.sameopenfile(1, 2) else Outlet.pair(1, 2)
        self._rank = subprocess.Popen(
            command,
            env=environment,
            stdout=self._outlets[0].rank_fd,
            stderr=self._outlets[-1].rank_fd,
            preexec_fn=prepare_rank,  # ruff: ignore[PLW1509] - no other thread runs yet
            start_new_session=True,
            pass_fds=inherited,
        )
        self._log = RankLog(log_path) if log_path else None
        for outlet in self._outlets:
            outlet.pump(self._log)
        return self._rank.pid

    def watch_signals(self) -> None:
        """Hear signals as bytes in the selector. What our user ignores (nohup) stays ignored."""
        ours, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup)
        for name in (*FORWARDED, "SIGCHLD"):
            number = getattr(signal, name)
            # Ignored, SIGCHLD would lose the rank's exit status (wait(2)).
            if name == "SIGCHLD" or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_signals(os.read(ours, 64)))

    def listen(self, path: str) -> None:
        """Take the agent's requests. Raises OSError."""
        ControlSocket(path, self._selector, self._end_on_request)

    def wait(self) -> int:
        """The rank's exit status, negative for a signal; signals, requests and deadlines are served meanwhile."""
        rank = self._running()
        while rank.poll() is None:
            self._notice_lost_launcher()
            self._notice_left_behind()
            now = time.monotonic()
            if self._escalation and self._escalation[0][0] <= now:
                self._send(self._escalation.pop(0)[1])
            pause_s = self._escalation[0][0] - now if self._escalation else _LOOK_UP_S
            for key, _ in self._selector.select(min(max(pause_s, 0.01), _LOOK_UP_S)):
                serve: Callable[[], None] = key.data
                serve()
            for outlet in self._outlets:
                outlet.resize()
        return rank.returncode

    def failed_by_itself(self, status: int) -> bool:
        """True where nobody asked the rank to end."""
        return status != 0 and not (self.by_request or self.launcher_lost or self._told_to_end)

    def settle(self) -> None:
        """Let the rank's last words reach its log; a descendant may hold its output open, so not for long."""
        until = time.monotonic() + self._deadlines.settle_s
        for outlet in self._outlets:
            outlet.wait(max(0.0, until - time.monotonic()))
        if self._log is not None:
            self._log.flush(self._deadlines.settle_s)

    def hold(self, desk: Desk) -> None:
        """Keep a failed rank's exit from the launcher, which would kill the others within 0.1 s, until their evidence is taken.

        An end that is asked for meanwhile comes first.
        """
        began = time.monotonic()
        while not (desk.released() or self._told_to_end or self.by_request or self.launcher_lost):
            most_s = self._deadlines.hold_s if desk.agent_lives() else self._deadlines.hold_alone_s
            if time.monotonic() - began >= most_s:
                return
            self._notice_lost_launcher()
            for key, _ in self._selector.select(_HOLD_POLL_S):
                serve: Callable[[], None] = key.data
                serve()

    def drain(self) -> None:
        """Pass on the rank's last words."""
        drain(self._outlets, self._log, self._deadlines.drain_s)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._rank is not None, "start() comes first"  # ruff: ignore[S101] - a programming error
        return self._rank

    def _on_signals(self, numbers: bytes) -> None:
        for name in (signal.Signals(number).name for number in numbers):
            if name == "SIGCHLD":
                reap(spare=self._running().pid)
            elif name == "SIGTERM" and self._launcher_pid and os.getppid() != self._launcher_pid:
                self._notice_lost_launcher()  # PDEATHSIG, and not a word of the launcher's
            else:
                self._send(name)
                self._told_to_end = self._told_to_end or name in ENDING
                if name in ENDING and not self._escalation:
                    self._escalation = self._steps_after(name)

    def _steps_after(self, name: str) -> list[tuple[float, str]]:
        now = time.monotonic()
        last = (now + self._deadlines.kill_s, "SIGKILL")
        return [last] if name == "SIGTERM" else [(now + self._deadlines.term_after_int_s, "SIGTERM"), last]

    def _notice_lost_launcher(self) -> None:
        if self._launcher_pid and not self.launcher_lost and os.getppid() != self._launcher_pid:
            self.launcher_lost = True
            self._send("SIGTERM")
            self._escalation = [(time.monotonic() + self._deadlines.lost_launcher_kill_s, "SIGKILL")]

    def _notice_left_behind(self) -> None:
        """An end that is under way already goes its way."""
        if not (self._left_behind or self._escalation) and is_left_behind(self._run_dir):
            self._left_behind = self._told_to_end = True
            term_at_s = time.monotonic() + self._deadlines.left_behind_s
            self._escalation = [(term_at_s, "SIGTERM"), (term_at_s + self._deadlines.kill_s, "SIGKILL")]

    def _end_on_request(self, grace_s: float) -> None:
        if not self.by_request:
            self.by_request = True
            self._send("SIGTERM")
            last = (time.monotonic() + grace_s, "SIGKILL")
            self._escalation = [min([last, *self._escalation[-1:]])]

    def _send(self, name: str) -> None:
        """Signal the rank's process group, as torchrun would have. A stopped group hears SIGTERM only after SIGCONT."""
        if self._running().returncode is not None:
            return  # reaped: its number may be another's by now, and what it left behind is swept
        for each in (name, "SIGCONT") if name == "SIGTERM" else (name,):
            try:
                os.killpg(self._running().pid, getattr(signal, each))
            except (ProcessLookupError, PermissionError):
                return  # it ends just now


def main(command: list[str], launcher_pid: int, deadlines: Deadlines = DEADLINES) -> int:
    """Run one rank to its end, and end as it ended.

    `launcher_pid` 0: any launcher may have started us. Whether it stays is then its own affair, and PDEATHSIG would not tell: it speaks
    of the thread that started us, not of its process (prctl(2)).
    """
    run_dir = os.environ.get("RANKPATROL_RUN_DIR")
    # Under torchrun nothing but torchrun's own word counts: what else it starts is no rank, whatever Slurm calls it.
    place = place_of(os.environ, (TORCHRUN,) if launcher_pid else LAUNCHERS)
    if not run_dir or place is None:
        return _be(command)
    hold_standard_streams()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in HELD_AT_START])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C while we wait for our start is an end, not a traceback
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if launcher_pid:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher_pid:
            return 1  # torchrun died before we could ask to be told
    _end_where_all_has_ended(run_dir, place.rank)
    desk = Desk(run_dir, place, launcher_stays=bool(launcher_pid))
    deadlines = as_patient_as(deadlines, shutdown_timeout_s(proc_words(launcher_pid, "cmdline"), os.environ))
    checkpoint = None if desk.knows_no_checkpoints() else desk.resume_from(deadlines.resume_s)
    desk.pause(deadlines.pause_s)
    words = command if checkpoint is None else [word.replace("{checkpoint}", checkpoint) for word in command]
    shim = Shim(launcher_pid, deadlines, run_dir)
    shim.watch_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    told = {"RANKPATROL_RESUME_FROM": checkpoint, "RANKPATROL_SUSPECT_FILES": desk.suspect_files()}
    environment = rank_environment(os.environ, environment_of(launcher_pid) if launcher_pid else None, told)
    held: Held | None = None
    if desk.wants_probe():
        environment, held = with_probe(environment, run_dir, desk.probe_socket_path())
    try:
        with _binding(desk, environment, launcher_pid):
            pid = shim.start(words, environment, desk.log_path(), () if held is None else held.inherited())
    except OSError as problem:
        return _cannot_start(words[0], problem)
    _report(desk, lambda: desk.register(pid, held))
    _report(desk, lambda: shim.listen(desk.socket_path()))
    status, ended_unix_s = shim.wait(), time.time()
    if shim.failed_by_itself(status):
        shim.settle()
        _report(desk, lambda: desk.ended(status, by_request=False, at_unix_s=ended_unix_s))
        if desk.spec is not None:  # no job is known here, say on another node: nobody would release it
            shim.hold(desk)
    if status != 0 or shim.by_request or shim.launcher_lost:
        # Stuck loader processes hold the dead rank's sockets and GPU memory, and its peers wait on.
        sweep(os.getpid(), deadlines.descendants_s)
    else:
        # Uploaders and checkpoint writers go on.
        end_stuck_loaders(os.getpid(), deadlines.loaders_leave_s, deadlines.descendants_s)
    return _end(shim, desk, status, ended_unix_s)


def _end_where_all_has_ended(run_dir: str, rank: int) -> None:
    """A launcher that its shell has left behind may have restarts left."""
    if is_left_behind(run_dir):
        say(f"rank {rank} is not started: its job was told to end, and the command that was run has ended")
        end_as(-signal.SIGTERM)


def _binding(desk: Desk, environment: Mapping[str, str], launcher_pid: int) -> ContextManager[None]:
    """What is started inside is bound to its GPU's NUMA node, where that is wanted and known."""
    if not desk.wants_binding():
        return contextlib.nullcontext()
    from rankpatrol.launch.shim.binding import bound  # ruff: ignore[PLC0415] - who declines it does not pay for it

    return bound(desk, environment, launcher_pid)


def _end(shim: Shim, desk: Desk, status: int, ended_unix_s: float) -> int:
    _report(desk, lambda: desk.ended(status, by_request=shim.by_request, at_unix_s=ended_unix_s))
    shim.drain()
    # A rank that we ended never counts as finished, even if it answers SIGTERM with exit(0).
    end_as(-signal.SIGTERM if shim.by_request and status == 0 else status)
    return 1


def _be(command: list[str]) -> int:
    """No rank, or no job: become CMD, as if we were not here."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them for itself
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # ruff: ignore[S606] - no shell is wanted
    except OSError as problem:
        return _cannot_start(command[0], problem)


def _cannot_start(word: str, problem: OSError) -> int:
    say(f"cannot start {word}: {problem.strerror}")
    return 127 if isinstance(problem, FileNotFoundError) else 126


def _report(desk: Desk, tell: Callable[[], None]) -> None:
    """Tell the agent something; that it cannot be told harms nothing."""
    try:
        tell()
    except OSError as problem:
        desk.not_seen(problem)
