"""Python stacks from outside, by py-spy: without stopping the process where that works, and leaving it as it was found."""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankpatrol.collect.procfs import not_there, opened, thread_state
from rankpatrol.core.errors import BadInput, CommandFailed, ProcessChanged
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import Stack
from rankpatrol.formats.pyspy import parse_dump
from rankpatrol.system.command import CommandResult, run
from rankpatrol.system.process import identify, send_signal

_AT_ONCE = 3
_ENOUGH_S = 0.02
_LONGEST_STOP_S = 2.0
_MAX_BYTES = 16 << 20
_SIGSTOP_BIT = 1 << (signal.SIGSTOP - 1)

# How a reason begins that no second try, and no other moment, will change.
FORBIDDEN = "the kernel forbids tracing"
# How reasons begin that another way to the same stack need not share: the process is there, and py-spy could not read it.
_READABLE_OTHERWISE = (FORBIDDEN, "py-spy ")
# What py-spy says, and what it means; anything else may be a stack that moved while it was read.
_FINAL = (
    (
        re.compile(r"permission denied|operation not permitted|os error (1|13)\)", re.IGNORECASE),
        FORBIDDEN + " process {pid}: give the agent CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0",
    ),
    (re.compile(r"failed to find python version", re.IGNORECASE), "process {pid} runs no Python"),
)


def take_stack(process: ProcessId, *, deadline_s: float = 5.0, may_stop: bool = True) -> Stack | Missing:
    """The Python stacks of exactly this process: read twice without stopping it, then once with a stop of some milliseconds, if it may.

    A process that is stopped, traced, or has a thread in D state is never attached to: it is read without a stop, or not at all.
    """
    until = time.monotonic() + deadline_s
    reason = Missing(f"no stack of process {process.pid} within {deadline_s:g} s")
    for stop in (False, False, True) if may_stop else (False, False):
        if time.monotonic() + _ENOUGH_S > until:
            return reason
        if (obstacle := _obstacle(process, stop=stop)) is not None:
            return Missing(f"{reason.reason}; {obstacle.reason}") if stop else obstacle
        seen, is_final = _attempt(process, stop=stop, deadline_s=until - time.monotonic())
        if isinstance(seen, Stack) or is_final:
            return seen
        reason = seen
    return reason


def take_native(process: ProcessId, *, deadline_s: float = 10.0) -> str | Missing:
    """Python and native frames as text. Stops the process for some 0.3 s: for ranks that are judged already."""
    if (obstacle := _obstacle(process, stop=True)) is not None:
        return obstacle
    result = _py_spy(process, ["--native"], stop=True, deadline_s=deadline_s)
    if isinstance(result, Missing):
        return result
    return result.stdout.decode(errors="replace") if result.exit_code == 0 else _failure(process, result)[0]


def may_be_told(reason: Missing) -> bool:
    """True where it was the tool that failed, not the process that is gone, stopped or hidden."""
    return reason.reason.startswith(_READABLE_OTHERWISE)


def take_stacks(
    processes: Sequence[ProcessId], *, deadline_s: float = 5.0, total_s: float | None = None, may_stop: bool = True
) -> dict[int, Stack | Missing]:
    """A stack of each, by pid, a few at a time; each has `deadline_s`, and all together `total_s` (the same where not given)."""
    until = time.monotonic() + (deadline_s if total_s is None else total_s)

    def take(process: ProcessId) -> Stack | Missing:
        left_s = until - time.monotonic()
        if left_s < _ENOUGH_S:
            return Missing(f"the time for this round's stacks was over before process {process.pid} came up")
        return take_stack(process, deadline_s=min(deadline_s, left_s), may_stop=may_stop)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="py-spy") as pool:
        return {process.pid: stack for process, stack in zip(processes, pool.map(take, processes), strict=True)}


@contextlib.contextmanager
def left_as_found(process: ProcessId) -> Iterator[None]:
    """Let a tool stop the process inside; afterwards resume it if it stands stopped and did not before."""
    stopped_before = _is_stopped(process)
    try:
        yield
    finally:
        if not stopped_before and _is_stopped(process):
            with contextlib.suppress(ProcessChanged):
                send_signal(process, signal.SIGCONT)


def _attempt(process: ProcessId, *, stop: bool, deadline_s: float) -> tuple[Stack | Missing, bool]:
    """One reading, and whether another try is pointless."""
    mode = ["--json"] if stop else ["--json", "--nonblocking"]
    # A thread that enters D state just now makes py-spy wait, with all others held (its issue 565): then it is ended soon.
    result = _py_spy(process, mode, stop=stop, deadline_s=min(deadline_s, _LONGEST_STOP_S) if stop else deadline_s)
    if isinstance(result, Missing):
        return result, True
    if result.exit_code != 0:
        return _failure(process, result)
    try:
        stack = parse_dump(result.stdout)
    except BadInput as problem:
        return Missing(f"py-spy failed on process {process.pid}: {problem}"), False
    return _gone(process) or stack, True


def _py_spy(process: ProcessId, mode: list[str], *, stop: bool, deadline_s: float) -> CommandResult | Missing:
    program = _find_py_spy()
    if program is None:
        return Missing("py-spy is not installed beside rankpatrol's Python nor on PATH: pip install py-spy")
    try:
        with left_as_found(process) if stop else contextlib.nullcontext():
            return run([program, "dump", *mode, "--pid", str(process.pid)], deadline_s=deadline_s, max_bytes=_MAX_BYTES)
    except CommandFailed as problem:
        return Missing(f"no stack of process {process.pid}: {problem}")
    except PermissionError:
        return Missing(f"process {process.pid} may stand stopped after py-spy, and the kernel refuses us SIGCONT: kill -CONT {process.pid}")


def _failure(process: ProcessId, result: CommandResult) -> tuple[Missing, bool]:
    """Why py-spy failed, and whether another try is pointless."""
    if (gone := _gone(process)) is not None:
        return gone, True
    stderr = result.stderr.decode(errors="replace")
    for pattern, meaning in _FINAL:
        if pattern.search(stderr):
            return Missing(meaning.format(pid=process.pid)), True
    told = stderr.split("Stack backtrace", maxsplit=1)[0].replace("Error:", "").replace("Caused by:", "")
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return Missing(f"py-spy failed on process {process.pid}: {' / '.join(lines) or 'it said nothing'}"), False


def _obstacle(process: ProcessId, *, stop: bool) -> Missing | None:
    """Why this process must not be looked at, or not be stopped for it."""
    if (gone := _gone(process)) is not None or not stop:
        return gone
    with opened(process.pid) as directory:
        threads = directory if isinstance(directory, Missing) else directory.threads()
    if isinstance(threads, Missing):
        return threads
    main = threads.get(process.pid)
    if main is not None and main.state in {"T", "t"}:
        return Missing(f"process {process.pid} is stopped or traced already: a tool that stops it could change that")
    if any(thread.state == "D" for thread in threads.values()):
        return Missing(f"a thread of process {process.pid} is in D state: a tool that stops it would wait for that thread")
    return None


def _gone(process: ProcessId) -> Missing | None:
    seen = identify(process.pid)
    if seen is None:
        return not_there(process.pid)
    if seen != process:
        return Missing(f"pid {process.pid} belongs to another process now")
    return Missing(f"process {process.pid} has ended (state Z)") if _state(process) == "Z" else None


def _is_stopped(process: ProcessId) -> bool:
    """Whether any thread stands stopped, or will as soon as it runs: a SIGSTOP can still be pending when its sender is gone."""
    with opened(process.pid) as directory:
        tasks = directory if isinstance(directory, Missing) else directory.entries("task")
        if isinstance(directory, Missing) or isinstance(tasks, Missing):
            return False
        return any(_shows_stop(directory.read(f"task/{task}/status", 8192)) for task in tasks)


def _shows_stop(status: bytes | Missing) -> bool:
    if isinstance(status, Missing):
        return False
    pending = [int(mask, 16) for mask in re.findall(rb"^(?:SigPnd|ShdPnd):\s+([0-9a-f]+)", status, re.MULTILINE)]
    return re.search(rb"^State:\s+[Tt]", status, re.MULTILINE) is not None or any(mask & _SIGSTOP_BIT for mask in pending)


def _state(process: ProcessId) -> str | None:
    with opened(process.pid) as directory:
        stat = directory if isinstance(directory, Missing) else directory.read("stat")
    return None if isinstance(stat, Missing) else thread_state(stat).state


def _find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")
