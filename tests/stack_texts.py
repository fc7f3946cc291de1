"""One set of frames in the words of every tool: py-spy's text and JSON, faulthandler, gdb's py-bt, pystack, and a traceback."""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

_SITE = "/env/lib/python3.11/site-packages/"


class F(NamedTuple):
    """One frame; `file` is relative to where Python finds it."""

    name: str
    file: str
    line: int = 10


class P(NamedTuple):
    """One process: its frames innermost first, C functions innermost first, and whose child it is."""

    rank: int
    pid: int
    frames: Sequence[F]
    native: Sequence[str] = ()
    child_of: int | None = None
    idle: bool = True


def full(file: str) -> str:
    """The path as the interpreter knows it."""
    if file.startswith(("/", "<")):
        return file
    top = file.split("/", 1)[0].removesuffix(".py")
    if top in {
        "threading",
        "queue",
        "selectors",
        "multiprocessing",
        "contextlib",
        "logging",
        "subprocess",
        "ssl",
        "socket",
        "http",
        "concurrent",
    }:
        return f"/usr/lib/python3.11/{file}"
    packages = (
        "torch|deepspeed|transformers|datasets|urllib3|huggingface_hub|lightning|megatron|filelock|fairseq|accelerate|requests|triton|wandb"
    )
    return _SITE + file if re.match(rf"({packages})/", file) else f"/home/u/job/{file}"


def _marked(process: P, body: str) -> str:
    family = f" ppid={process.child_of} role=dataloader_worker" if process.child_of is not None else ""
    return f"## rank={process.rank} node=n1 pid={process.pid}{family}\n{body}\n"


def pyspy(processes: Sequence[P]) -> str:
    """`py-spy dump`."""
    parts = []
    for each in processes:
        lines = [f"    {name} (libc.so.6)" for name in each.native] + [
            f"    {frame.name} ({frame.file}:{frame.line})" for frame in each.frames
        ]
        state = "idle" if each.idle else "active"
        head = f'Process {each.pid}: python -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread {each.pid} ({state}): "MainThread"'
        parts.append(_marked(each, "\n".join([head, *lines])))
    return "\n".join(parts)


def pyspy_json(processes: Sequence[P]) -> str:
    """`py-spy dump --json`."""
    parts = []
    for each in processes:
        frames = [{"name": name, "filename": "libc.so.6", "line": 0} for name in each.native]
        frames += [
            {"name": frame.name, "filename": full(frame.file), "short_filename": frame.file, "line": frame.line} for frame in each.frames
        ]
        thread = {
            "pid": each.pid,
            "thread_name": "MainThread",
            "os_thread_id": each.pid,
            "active": not each.idle,
            "owns_gil": False,
            "frames": frames,
        }
        parts.append(_marked(each, json.dumps([thread], indent=1)))
    return "\n".join(parts)


def faulthandler(processes: Sequence[P]) -> str:
    """`faulthandler.dump_traceback`: Python frames alone."""
    parts = []
    for each in processes:
        lines = [f'  File "{full(frame.file)}", line {frame.line} in {frame.name}' for frame in each.frames]
        parts.append(_marked(each, "\n".join(["Current thread 0x00007f11aa5c1740 (most recent call first):", *lines])))
    return "\n".join(parts)


def gdb(processes: Sequence[P]) -> str:
    """`thread apply all bt` and `py-bt` below it."""
    parts = []
    for each in processes:
        bt = [f"#{at}  0x00007f8a0{at:07x} in {name} () from /lib/x86_64-linux-gnu/libc.so.6" for at, name in enumerate(each.native)]
        py = [
            f'  File "{full(frame.file)}", line {frame.line}, in {frame.name} (self=<Loader(x=3) at remote 0x7f>)' for frame in each.frames
        ]
        head = f'Thread 1 (Thread 0x7f2a1c0f5740 (LWP {each.pid}) "python3"):'
        parts.append(_marked(each, "\n".join([head, *bt, "Traceback (most recent call first):", *py])))
    return "\n".join(parts)


def pystack(processes: Sequence[P]) -> str:
    """`pystack remote --native`: the newest call last."""
    parts = []
    for each in processes:
        lines = [
            f'    (Python) File "{full(frame.file)}", line {frame.line}, in {frame.name}\n        call()' for frame in reversed(each.frames)
        ]
        lines += [f'    (C) File "./nptl/x.c", line 3, in {name} (/lib/libc.so.6)' for name in reversed(each.native)]
        parts.append(_marked(each, "\n".join([f"Traceback for thread {each.pid} (python3) [] (most recent call last):", *lines])))
    return "\n".join(parts)


def traceback(processes: Sequence[P]) -> str:
    """`traceback.print_stack` of each rank, the newest call last."""
    parts = []
    for each in processes:
        lines = [f'  File "{full(frame.file)}", line {frame.line}, in {frame.name}\n    call()' for frame in reversed(each.frames)]
        parts.append(_marked(each, "\n".join(["Stack (most recent call last):", *lines])))
    return "\n".join(parts)


def prefixed(processes: Sequence[P]) -> str:
    """faulthandler through torchrun's log, each line with its rank in front."""
    lines: list[tuple[int, str]] = []
    for each in processes:
        own = ["Current thread 0x00007f11aa5c1740 (most recent call first):"]
        own += [f'  File "{full(frame.file)}", line {frame.line} in {frame.name}' for frame in each.frames]
        lines += [(at, f"[rank{each.rank}]: {line}") for at, line in enumerate(own)]
    return "\n".join(line for _, line in sorted(lines, key=lambda each: each[0]))


# Tools that show Python frames; those that show C functions as well come first.
WITH_NATIVE: tuple[Callable[[Sequence[P]], str], ...] = (pyspy, pyspy_json, gdb, pystack)
ALL: tuple[Callable[[Sequence[P]], str], ...] = (*WITH_NATIVE, faulthandler, traceback)
