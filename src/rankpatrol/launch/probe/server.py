# ruff: file-ignore[builtin-open] - pathlib is a slow import for a user's interpreter
"""torch's own worker server on a private socket: it tells the flight recorder's content while the rank is stuck, without ptrace."""

from __future__ import annotations

import os
import resource
import sys

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from typing import Any

LINES_HANDLER = "rankpatrol_lines"


def serve(path: str) -> bool:
    """Start the server, where this torch has one and its threads have room. True where it answers now."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    make = getattr(c10d, "_WorkerServer", None)
    if make is None or not _room_for_threads():
        return False
    _offer_lines(c10d)
    # Its destructor waits for its threads: in a forked child, which has none of them, for ever.
    _keep_for_good(make(path))
    return True


def _offer_lines(c10d: Any) -> None:
    """A handler for the recorder with lines of code, which torch itself offers of NCCL's recorder alone.

    It needs the GIL, and at its first call torch imports its compiler: a second or more of CPU. So it is asked of ranks that wait.
    """
    dump, register = getattr(c10d, "_dump_fr_trace", None), getattr(c10d, "_register_handler", None)
    if dump is None or register is None:
        return

    def answer(_request: object, response: Any) -> None:
        response.set_content(dump(includeCollectives=True, includeStackTraces=True, onlyActive=False), "application/octet-stream")
        response.set_status(200)

    # torch drops it after Python has ended: were that the last reference, the rank would abort at its exit.
    _keep_for_good(answer)
    register(LINES_HANDLER, answer)


def _keep_for_good(value: object) -> None:
    import ctypes  # ruff: ignore[PLC0415] - torch has imported it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _room_for_threads() -> bool:
    """The server starts a thread a CPU, eight at least, and ends the process where one cannot be started."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    wanted = 2 * (max(8, os.cpu_count() or 1) + 1) * (int(ranks) if ranks.isdigit() else 8)
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and most not in {resource.RLIM_INFINITY, -1} and most < wanted:
        return False
    return all(_room_in(folder) >= wanted for folder in _control_groups())


def _control_groups() -> list[str]:
    """Where this process's control groups keep their count of tasks (cgroups(7)), with those above them: each of them may limit it."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as text:
            lines = [line.rstrip("\n").split(":", 2) for line in text]
    except (OSError, ValueError):
        return []
    folders = []
    for _, controllers, path in [line for line in lines if len(line) == 3]:
        if controllers in {"", "pids"}:
            root = "/sys/fs/cgroup" if not controllers else "/sys/fs/cgroup/pids"
            parts = path.strip("/").split("/")
            folders += ["/".join([root, *parts[:depth]]) for depth in range(len(parts) + 1)]
    return folders


def _room_in(folder: str) -> float:
    try:
        with open(folder + "/pids.max", encoding="ascii") as most, open(folder + "/pids.current", encoding="ascii") as current:
            return int(most.read()) - int(current.read())
    except (OSError, ValueError):
        return float("inf")  # not there, or "max"
