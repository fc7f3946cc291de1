"""N11: somebody holds the job: it is suspended as a whole, one rank is debugged from outside or from inside, or nobody may act."""

import os
import signal
import subprocess
import sys
import time

import msgspec

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import ProcessId
from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.f5 import SleepsBeforeCollective
from rankpatrol.drill.faults.port import Expectation, Fault, Moment
from rankpatrol.drill.ranks import rank_process
from rankpatrol.drill.scene import Scene
from rankpatrol.drill.truth import Truth, read_truth, write_truth
from rankpatrol.system.command import run
from rankpatrol.system.process import send_signal

_SUSPENDED_S = 40.0
# As a debugger does: ptrace(2) attaches to the main thread, waits until it stands, and lets it go on its word.
_TRACER = """import ctypes, os, sys
libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
if libc.ptrace(16, pid, None, None) != 0:
    sys.exit("ptrace: " + os.strerror(ctypes.get_errno()))
os.waitpid(pid, 0x40000000)
print("attached", flush=True)
sys.stdin.read()
libc.ptrace(17, pid, None, None)
"""


class Suspended(Fault):
    """SIGSTOP to every rank; SIGCONT after twice the patience."""

    id = "N11-suspended"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT

    def __init__(self) -> None:
        self._ranks: list[ProcessId] = []
        self._truth = Truth()
        self._began_s = 0.0

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._truth.at_unix_s is None and moment.step >= scene.step:
            found = [rank_process(moment.keeper_pid, rank) for rank in range(scene.ranks)]
            self._ranks = [rank for rank in found if rank is not None]
            self._signal(signal.SIGSTOP)
            self._began_s = time.monotonic()
            self._truth = Truth(step=moment.step, at_unix_s=time.time())
            write_truth(scene.truth, self._truth)
        elif self._ranks and time.monotonic() - self._began_s >= _SUSPENDED_S:
            self._signal(signal.SIGCONT)
            self._ranks = []
            write_truth(scene.truth, Truth(step=self._truth.step, at_unix_s=self._truth.at_unix_s, until_unix_s=time.time()))

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            send_signal(rank, number)


class Traced(Fault):
    """A tracer of the drill's own holds the drawn rank, for twice the patience."""

    id = "N11-traced"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT

    def __init__(self) -> None:
        self._tracer: subprocess.Popen[str] | None = None
        self._truth = Truth()

    def strike(self, scene: Scene, moment: Moment) -> None:
        if self._truth.at_unix_s is None and moment.step >= scene.step:
            rank = rank_process(moment.keeper_pid, scene.rank)
            if rank is not None and self._attach(rank):
                self._truth = Truth(rank=scene.rank, step=moment.step, at_unix_s=time.time(), pids=(rank.pid,))
                write_truth(scene.truth, self._truth)
        elif self._tracer is not None and self._truth.at_unix_s is not None and time.time() - self._truth.at_unix_s >= _SUSPENDED_S:
            self.clear()
            write_truth(scene.truth, _over(self._truth))

    def clear(self) -> None:
        if self._tracer is not None:
            self._tracer.communicate()
            self._tracer = None

    def _attach(self, rank: ProcessId) -> bool:
        command = [sys.executable, "-S", "-c", _TRACER, str(rank.pid)]
        self._tracer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self._tracer.stdout is not None and self._tracer.stdout.readline() == "attached\n"


class AtABreakpoint(AtCall):
    """The drawn rank calls `breakpoint()` on a terminal, where somebody types `continue` after twice the patience."""

    id = "N11-breakpoint"
    verdict = "healthy"
    causes = ("none",)
    expects = Expectation.SILENT
    at = "step"
    do = "inspect"
    lasts_s = _SUSPENDED_S

    def __init__(self) -> None:
        self._terminal: tuple[int, int] | None = None
        self._typed = False

    def prepare(self, scene: Scene) -> dict[str, str]:
        self._terminal = os.openpty()
        return super().prepare(scene)

    def more(self) -> dict[str, object]:
        return {"terminal": os.ttyname(self._terminal[1]) if self._terminal else ""}

    def strike(self, scene: Scene, moment: Moment) -> None:  # ruff: ignore[ARG002] - the port's words
        told = None if self._typed else read_truth(scene.truth)
        if self._terminal and isinstance(told, Truth) and told.at_unix_s is not None and time.time() - told.at_unix_s >= self.lasts_s:
            self._typed = True
            os.write(self._terminal[0], b"continue\n")

    def clear(self) -> None:
        for descriptor in self._terminal or ():
            os.close(descriptor)
        self._terminal = None


class Paused(SleepsBeforeCollective):
    """A rank sleeps for ever while a person has paused the patrol of this job; the pause is lifted after three times the patience."""

    id = "N11-paused"
    paused_s = 60.0
    ended_s = 90.0

    def __init__(self) -> None:
        self._paused = False
        self._lifted = False

    def strike(self, scene: Scene, moment: Moment) -> None:
        if not self._paused and moment.step >= 1:
            self._paused = True
            _rankpatrol("pause", str(scene.job))
        told = read_truth(scene.truth) if not self._lifted else None
        if isinstance(told, Truth) and told.at_unix_s is not None and time.time() - told.at_unix_s >= self.paused_s:
            self._lifted = True
            write_truth(scene.truth, _over(told))
            _rankpatrol("unpause", str(scene.job))


def _over(truth: Truth) -> Truth:
    return msgspec.structs.replace(truth, until_unix_s=time.time())


def _rankpatrol(*words: str) -> None:
    """One command as a user types it."""
    done = run([sys.executable, "-m", "rankpatrol", *words], deadline_s=30)
    if done.exit_code != 0:
        raise CommandFailed(f"rankpatrol {' '.join(words)}: {done.stderr.decode(errors='replace').strip()[-300:]}")
