"""Stacks that a rank tells itself at SIGURG: how long the question takes, and for how long the rank stands still for it."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from rankpatrol.collect.told_stacks import StackPipe, ask_stack
from rankpatrol.core.snapshot import Stack
from rankpatrol.launch.shim.marks import with_probe
from rankpatrol.system.process import identify

ASKED, THREADS, DEEP = 50, 8, 40
# The longest gap between two looks at the clock, told at each line that comes.
SPINS = f"""
import select, sys, threading, time
def deep(left, then):
    return deep(left - 1, then) if left else then()
for _ in range({THREADS}):
    threading.Thread(target=deep, args=({DEEP}, threading.Event().wait), daemon=True).start()
def spin():
    clock, until = time.perf_counter, 0
    while True:
        last, longest, ends = clock(), 0, clock() + 0.2
        while last < ends:
            now = clock()
            longest, last = max(longest, now - last), now
        print(longest, flush=True)
deep({DEEP}, spin)
"""


def main() -> None:
    environment, held = with_probe(dict(os.environ), tempfile.gettempdir(), "")
    assert held is not None
    assert held.stacks_fd is not None
    with subprocess.Popen(
        [sys.executable, "-c", SPINS], env=environment, pass_fds=held.inherited(), start_new_session=True, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        shim, process = identify(os.getpid()), identify(rank.pid)
        assert shim is not None
        assert process is not None
        pipe = StackPipe(shim=shim, fd=held.stacks_fd, marks_fd=held.marks_fd, rank=process)
        rank.stdout.readline()
        without, asked, took = [], [], []
        for _ in range(ASKED):
            without.append(float(rank.stdout.readline()))
            began = time.perf_counter()
            assert isinstance(ask_stack(process, pipe), Stack)
            took.append(time.perf_counter() - began)
            asked.append(float(rank.stdout.readline()))
        rank.kill()
    print(f"a question, {THREADS + 1} threads of {DEEP} frames: {statistics.median(took) * 1000:.0f} ms")
    quiet, still = statistics.median(without), statistics.median(asked)
    print(f"the rank's longest gap while asked: {still * 1000:.2f} ms; while not asked: {quiet * 1000:.2f} ms")


if __name__ == "__main__":
    main()
