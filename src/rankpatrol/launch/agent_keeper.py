"""The agent beside the training: it may die and is started again; it never holds the training up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rankpatrol.core.records import Record


class KeepingRules(Record, frozen=True, kw_only=True):
    """How often the agent is started again, and how long its last words may take."""

    starts_most: int = 20
    pause_s: float = 1.0
    # Sealing what a dying job left takes seconds; longer than this the user waits for nothing.
    last_words_s: float = 15.0
    goes_within_s: float = 2.0


_RULES = KeepingRules()


def agent_command(run_dir: Path) -> tuple[str, ...]:
    """-P: the training's folder may hold a json.py of its own (python -m looks there first)."""
    return (sys.executable, "-P", "-m", "rankpatrol.agent", str(run_dir))


class AgentKeeper:
    """Keeps one agent; `unblock` gives it the signal mask that our user had."""

    def __init__(self, command: Sequence[str], unblock: Callable[[], None], rules: KeepingRules = _RULES) -> None:
        self._command, self._unblock, self._rules = tuple(command), unblock, rules
        self._starts_left = rules.starts_most
        self._next_start_mono_s = 0.0
        self._agent: subprocess.Popen[bytes] | None = None

    def keep(self, *, at_once: bool = False) -> None:
        """Start the agent where none runs, now and then; `at_once` for its last words."""
        if self._runs() or (time.monotonic() < self._next_start_mono_s and not at_once):
            return
        self._next_start_mono_s = time.monotonic() + self._rules.pause_s
        if self._starts_left > 0:
            self._start()
        elif self._starts_left == 0:
            self._starts_left = -1
            _say("the agent ended too often and is not started again; the training goes on without patrol")

    def farewell(self, ending: Collection[signal.Signals]) -> None:
        """Give the agent time for its last words, unless an ending signal comes."""
        while signal.sigtimedwait(ending, 0) is not None:
            pass  # meant for CMD, which has ended; timeout(1) sends two
        until = time.monotonic() + self._rules.last_words_s
        while self._runs() and time.monotonic() < until:
            heard = signal.sigtimedwait({*ending, signal.SIGCHLD}, min(0.5, max(0.0, until - time.monotonic())))
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                break

    def dismiss(self) -> None:
        """End the agent: it is ours."""
        if self._agent is None or not self._runs():
            return
        self._agent.terminate()
        try:
            self._agent.wait(self._rules.goes_within_s)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in D state: left to init
                self._agent.wait(self._rules.goes_within_s)

    def _runs(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def _start(self) -> None:
        self._starts_left -= 1
        errors = 2 if _is_open(2) else subprocess.DEVNULL
        with contextlib.suppress(OSError):  # no process to spare now: tried again soon
            self._agent = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                preexec_fn=self._unblock,  # ruff: ignore[PLW1509] - this process has one thread
            )


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _say(what: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"rankpatrol: {what}\n".encode())
