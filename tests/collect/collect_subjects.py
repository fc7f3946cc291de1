"""Real programs to look at: each says it is ready right before it blocks, and ends with its test."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PYTHON = sys.executable

_PRELUDE = """
import ctypes, fcntl, os, signal, sys, threading, time
def ready():
    os.write(int(sys.argv[1]), b"r")
def call_me(name):
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
"""


@contextmanager
def started(code: str, *arguments: object, cwd: Path | None = None) -> Iterator[int]:
    """The pid of a Python program that has called ready(). It and its children (one process group) are killed in the end."""
    heard, said = os.pipe()
    process = subprocess.Popen(
        [_PYTHON, "-c", _PRELUDE + code, str(said), *map(str, arguments)], pass_fds=[said], start_new_session=True, cwd=cwd
    )
    os.close(said)
    try:
        assert select.select([heard], [], [], 15)[0], "the program said nothing"
        assert os.read(heard, 1) == b"r", "the program died before it was ready"
        yield process.pid
    finally:
        os.close(heard)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def wait_for(look: Callable[[], T | None], deadline_s: float = 10.0) -> T:
    """What `look` sees, as soon as it sees something."""
    until = time.monotonic() + deadline_s
    while (seen := look()) is None:
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.005)
    return seen
