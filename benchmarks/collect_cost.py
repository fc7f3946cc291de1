"""What one look at a process costs, light and full, beside psutil's where that is installed."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

from rankpatrol.collect.processes import process_tree, sample_process

_SUBJECT = """
import socket, sys, tempfile, threading
threads, files = int(sys.argv[1]), int(sys.argv[2])
held = [tempfile.TemporaryFile() for _ in range(files)] + [socket.socket() for _ in range(files)]
for _ in range(threads):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def main() -> None:
    for threads, files in ((0, 0), (20, 20), (150, 100)):
        with subprocess.Popen(
            [sys.executable, "-c", _SUBJECT, str(threads), str(files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as subject:
            assert subject.stdout is not None
            subject.stdout.readline()
            report(f"{threads + 1} threads, {2 * files} files and sockets", subject.pid)
            subject.communicate()
    count = sum(name.isdigit() for name in os.listdir("/proc"))  # ruff: ignore[PTH208] - names alone are counted
    print(f"process tree of {count} processes: {cpu_us(process_tree):.0f} us")


def report(what: str, pid: int) -> None:
    light = cpu_us(lambda: sample_process(pid, with_files=False))
    full = cpu_us(lambda: sample_process(pid, with_files=True))
    print(f"{what}: light {light:.0f} us, full {full:.0f} us, psutil {psutil_us(pid)}")


def psutil_us(pid: int) -> str:
    try:
        psutil = importlib.import_module("psutil")
    except ImportError:
        return "not installed"
    light = ["ppid", "name", "cmdline", "status", "cpu_times", "num_ctx_switches", "memory_info", "io_counters", "threads"]
    cost_light = cpu_us(lambda: psutil.Process(pid).as_dict(light))
    cost_full = cpu_us(lambda: psutil.Process(pid).as_dict([*light, "open_files", "net_connections"]))
    return f"{cost_light:.0f} us with about the same fields, {cost_full:.0f} us with open files and sockets"


def cpu_us(look: Callable[[], object], times: int = 300) -> float:
    look()
    began = time.process_time()
    for _ in range(times):
        look()
    return (time.process_time() - began) / times * 1e6


main()
