"""What `py-spy dump --json` prints, as a Stack."""

from typing import Any

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.snapshot import Frame, Stack, ThreadStack


class _Frame(msgspec.Struct):
    name: str = "?"
    filename: str | None = None
    line: int | None = None


class _Thread(msgspec.Struct):
    frames: list[_Frame]
    pid: int | None = None
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool = False
    owns_gil: bool = False


def parse_dump(data: bytes) -> Stack:
    """The stack of one process, frames innermost first as py-spy prints them. Raises BadInput for anything else."""
    try:
        threads = msgspec.json.decode(data, type=list[_Thread])
    except msgspec.DecodeError as problem:
        raise _refused(str(problem)) from problem
    return _stack(threads)


def parse_dump_value(value: Any) -> Stack:
    """The same from JSON that is already decoded, as it lies inside a larger document."""
    try:
        threads = msgspec.convert(value, type=list[_Thread])
    except msgspec.ValidationError as problem:
        raise _refused(str(problem)) from problem
    return _stack(threads)


def _stack(threads: list[_Thread]) -> Stack:
    pids = [thread.pid for thread in threads if thread.pid is not None]
    if not pids:
        raise _refused("no thread in it names its process")
    return Stack(pids[0], tuple(_thread(thread) for thread in threads if thread.pid in {None, pids[0]}))


def _thread(thread: _Thread) -> ThreadStack:
    return ThreadStack(
        thread_id=thread.os_thread_id,
        name=thread.thread_name,
        active=thread.active,
        owns_gil=thread.owns_gil,
        frames=tuple(Frame(frame.name, frame.filename or "?", frame.line or 0) for frame in thread.frames),
    )


def _refused(why: str) -> BadInput:
    return BadInput(f"this is no stack from py-spy: {why}", help="Make one with: py-spy dump --json --nonblocking --pid PID")
