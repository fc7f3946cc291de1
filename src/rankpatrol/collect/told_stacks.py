"""Stacks that a rank tells itself, where a tool may not read them: SIGURG makes its faulthandler write them into a pipe of its shim's.

The probe has registered that (launch/probe/stacks.py). A signal interrupts a sleeping call for a moment, so it is only sent to whoever
cannot be read otherwise; whoever does not handle SIGURG ignores it (signal(7)).
"""

import fcntl
import os
import re
import select
import signal
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from rankpatrol.collect.marks import offers_stacks
from rankpatrol.collect.procfs import not_there
from rankpatrol.core.errors import ProcessChanged
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Stack
from rankpatrol.formats.stack_text import parse_stacks
from rankpatrol.system.process import identify, pinned, read_stat, stat_fields

_BIT = 1 << (signal.SIGURG - 1)
_MOST_BYTES = 1 << 20
_POLL_S = 0.01
# How often in a row the kernel has to show nobody in the handler: between two of its steps it shows nobody for an instant.
_CALM_LOOKS = 3
_MASKS = re.compile(rb"^(SigPnd|ShdPnd|SigBlk|SigCgt):\s+([0-9a-f]+)", re.MULTILINE)
# faulthandler's word for what it left out: threads beyond a hundred, of which the last is the main one.
_CUT = re.compile(r"^\.\.\.$", re.MULTILINE)


class StackPipe(Record, frozen=True):
    """Where a rank's stacks come out: the descriptors of its shim's (the pipe, the rank's marks), and that rank."""

    shim: ProcessId
    fd: int
    marks_fd: int | None
    rank: ProcessId


def ask_stack(process: ProcessId, pipe: StackPipe, deadline_s: float = 1.0) -> Stack | Missing:
    """The Python stacks of this rank, or of a child that it forked. One at a time: they share the pipe."""
    until = time.monotonic() + deadline_s
    if process != pipe.rank and not _is_fork_of(process.pid, pipe.rank.pid):
        return Missing(f"process {process.pid} is no copy of the rank, so it tells no stacks")
    if pipe.marks_fd is None or not offers_stacks(pipe.shim, pipe.marks_fd):
        return Missing(f"process {process.pid} offers no stacks: SIGURG is in use there, or its Python has not loaded the probe")
    line = _open(pipe)
    if isinstance(line, Missing):
        return line
    try:
        return _ask(process, line, until) if _alone(line, until) else Missing(f"another one asks rank process {pipe.rank.pid} already")
    except ProcessChanged as problem:
        return Missing(str(problem))
    except OSError as problem:
        return Missing(f"process {process.pid} cannot be asked for its stacks: {problem.strerror}")
    finally:
        os.close(line)


def _alone(line: int, until: float) -> bool:
    """Two who read one pipe would each get a part (flock(2))."""
    while time.monotonic() < until:
        with suppress(BlockingIOError):
            fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_POLL_S)
    return False


def _ask(process: ProcessId, line: int, until: float) -> Stack | Missing:
    _read(line)  # what an earlier question left
    with pinned(process) as pidfd:
        refused = _refusal(process.pid)
        if refused is not None:
            return refused
        blocked = _blocked(process.pid)
        signal.pidfd_send_signal(pidfd, signal.SIGURG)
        text = _answer(process.pid, blocked, line, until)
        if isinstance(text, str) and len(text) >= fcntl.fcntl(line, fcntl.F_GETPIPE_SZ):
            return Missing(f"process {process.pid} tells more than its pipe holds: a part of it may be lost")
    return text if isinstance(text, Missing) else _stack(process.pid, text)


def _answer(pid: int, blocked: Collection[int], line: int, until: float) -> str | Missing:
    """What comes until the handler has returned: the kernel shows the signal as pending, then as blocked in the thread that handles it."""
    told, calm = b"", 0
    while calm < _CALM_LOOKS:
        if time.monotonic() > until or len(told) > _MOST_BYTES:
            return Missing(f"process {pid} did not finish telling its stacks in time")
        calm = 0 if _is_telling(pid, blocked) else calm + 1
        select.select([line], [], [], _POLL_S)
        told += _read(line)
    return told.decode(errors="replace") or Missing(f"process {pid} told no stacks: SIGURG is handled by something else in it")


def _stack(pid: int, text: str) -> Stack | Missing:
    """The threads stand newest first: the last is the main one, unless some were left out."""
    told = parse_stacks(text).processes
    threads = [thread for process in told for thread in process.threads]
    if not threads or not text.endswith("\n") or text.count("Current thread 0x") > 1:
        return Missing(f"process {pid} told no whole stack")
    if not _CUT.search(text):
        threads[-1] = msgspec.structs.replace(threads[-1], thread_id=pid, name="MainThread")
    return Stack(pid=pid, threads=tuple(threads), told=True)


def _refusal(pid: int) -> Missing | None:
    """Why the signal must not be sent, or would not be heard."""
    status = _status(f"/proc/{pid}/status")
    if status is None:
        return not_there(pid)
    if re.search(rb"^State:\s+[TtZX]|^TracerPid:\s+[1-9]", status, re.MULTILINE):
        return Missing(f"process {pid} is stopped or traced: it tells no stacks")
    if re.search(rb"^State:\s+D", status, re.MULTILINE):
        return Missing(f"process {pid} is in D state: it hears no signal")
    masks = _masks(status)
    if not masks.get("SigCgt", 0) & _BIT:
        return Missing(f"process {pid} offers no stacks: it has no handler for SIGURG")
    # The kernel gives it to the main thread where that hears it. Still in the handler, the rest of an older answer would come.
    if (masks.get("SigPnd", 0) | masks.get("ShdPnd", 0) | masks.get("SigBlk", 0)) & _BIT:
        return Missing(f"process {pid} is still at an earlier question, or does not hear SIGURG")
    return None


def _blocked(pid: int) -> frozenset[int]:
    """The threads that do not hear the signal."""
    return frozenset(tid for tid, masks in _threads(pid).items() if masks.get("SigBlk", 0) & _BIT)


def _is_telling(pid: int, blocked: Collection[int]) -> bool:
    threads = _threads(pid)
    pending = any((masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)) & _BIT for masks in threads.values())
    return pending or any(masks.get("SigBlk", 0) & _BIT for tid, masks in threads.items() if tid not in blocked)


def _threads(pid: int) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):  # ruff: ignore[PTH208] - names only
            status = _status(f"/proc/{pid}/task/{tid}/status")
            if status is not None:
                found[int(tid)] = _masks(status)
    return found


def _masks(status: bytes) -> dict[str, int]:
    return {name.decode(): int(mask, 16) for name, mask in _MASKS.findall(status)}


def _status(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _is_fork_of(pid: int, rank_pid: int) -> bool:
    """A fork has its parent's stack where that has it, and what was started anew (exec) another one (proc_pid_stat(5), field 28).

    Where the kernel hides that (0), the command line tells them apart, and at worst one that ignores the signal is sent it.
    """
    starts = {_stack_start(pid), _stack_start(rank_pid)}
    if starts == {0}:
        lines = {_status(f"/proc/{each}/cmdline") for each in (pid, rank_pid)}
        return len(lines) == 1 and not lines & {b"", None}
    return len(starts) == 1 and None not in starts


def _stack_start(pid: int) -> int | None:
    try:
        return int(stat_fields(read_stat(pid))[25])
    except (OSError, ValueError):
        return None


def _open(pipe: StackPipe) -> int | Missing:
    """The pipe's reading end, opened anew: the shim's own stays as it is."""
    if identify(pipe.shim.pid) != pipe.shim:
        return Missing(f"shim {pipe.shim.pid} is gone, and its rank's stacks with it")
    try:
        line = os.open(f"/proc/{pipe.shim.pid}/fd/{pipe.fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        return Missing(f"the pipe of stacks of shim {pipe.shim.pid} cannot be opened: {problem.strerror}")
    if not stat.S_ISFIFO(os.fstat(line).st_mode) or identify(pipe.shim.pid) != pipe.shim:
        os.close(line)
        return Missing(f"descriptor {pipe.fd} of shim {pipe.shim.pid} leads to no pipe")
    return line


def _read(line: int) -> bytes:
    """All that is there now."""
    read = b""
    with suppress(BlockingIOError):
        while len(read) <= _MOST_BYTES and (chunk := os.read(line, 1 << 16)):
            read += chunk
    return read
