"""NVML's word, asked for beside the scan: a driver that never answers delays nothing, and its silence is told."""

import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing
from rankpatrol.orphans.records import GpuSeen
from rankpatrol.system.background import Rounds
from rankpatrol.system.command import run

Gpus = tuple[GpuSeen, ...] | Missing
CHILD = (sys.executable, "-P", "-m", "rankpatrol.orphans.nvml_child")
_NEVER_UNASKED_S = 1e9
_OLD_S = 90.0  # one round of a scan each minute may be late
Answer = tuple[float, Gpus]


def ask_nvml(command: Sequence[str] = CHILD, *, deadline_s: float = 10.0) -> Gpus:
    """One answer, from a child process that is abandoned at the deadline: a call into the driver may never return."""
    try:
        done = run(command, deadline_s=deadline_s, max_bytes=4 << 20)
    except CommandFailed as problem:
        return Missing(f"NVML gave no answer: {problem}")
    if done.exit_code != 0:
        return Missing(done.stderr.decode(errors="replace").strip()[:300] or f"the NVML reader ended with {done.exit_code}")
    try:
        return msgspec.json.decode(done.stdout, type=tuple[GpuSeen, ...])
    except msgspec.MsgspecError as problem:
        return Missing(f"the NVML reader's answer cannot be read: {problem}")


class GpuWitness:
    """NVML's latest word. `look()` never waits: it asks anew, and gives what was answered before."""

    def __init__(self, ask: Callable[[], Gpus] = ask_nvml) -> None:
        self._ask = ask
        first: Answer = (time.monotonic(), Missing("NVML has not answered yet"))
        self._rounds: Rounds[Answer] = Rounds(self._round, first, every_s=_NEVER_UNASKED_S, name="nvml")

    def look(self) -> Gpus:
        """What was said last, unless that is old: a driver that stopped answering says nothing of now."""
        asked_mono_s, gpus = self._rounds.now(0.0)
        age_s = time.monotonic() - asked_mono_s
        return gpus if age_s < _OLD_S else Missing(f"NVML has not answered for {age_s:.0f} s")

    def fresh(self, deadline_s: float) -> Gpus:
        """A word that was asked for after this call, or Missing where none comes in time."""
        called_mono_s = time.monotonic()
        asked_mono_s, gpus = self._rounds.now(deadline_s)
        return gpus if asked_mono_s >= called_mono_s else Missing(f"NVML has not answered within {deadline_s:g} s")

    def _round(self) -> Answer:
        return time.monotonic(), self._ask()
