"""Looks like a rank of a training from outside, without torch: a gloo thread's name, steps in the log, a wait in all_reduce.

In the first attempt, rank 1 sleeps after a while and the others wait for it; later attempts finish. argv: for how many seconds it
trains, then `well` for a training in which nobody sleeps, `nobody` for one that gives up root, as some containers' entry points do,
`undumpable` for one that nobody may trace but who may trace everybody (ptrace(2)), `raises` and a pipe for one whose rank 1 raises instead
of sleeping, and goes down once the pipe has a writer.
"""

import ctypes
import os
import sys
import threading
import time

SOURCE = "def all_reduce(lock):\n    lock.acquire()\n"


def gloo_thread():
    ctypes.CDLL(None).prctl(15, b"gloo_tcp_loop", 0, 0, 0)  # PR_SET_NAME
    threading.Event().wait()


class Held:
    """What its interpreter still holds when it goes down."""

    def __del__(self, opens=os.open, mode=os.O_RDONLY, pipe=sys.argv[-1]):
        opens(pipe, mode)


def main():
    threading.Thread(target=gloo_thread, daemon=True).start()
    if "nobody" in sys.argv:
        os.setresuid(65534, 65534, 65534)
    if "undumpable" in sys.argv:
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    names = {}
    exec(compile(SOURCE, "/env/lib/python3/site-packages/torch/distributed/distributed_c10d.py", "exec"), names)
    rank, attempt = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    until = time.monotonic() + float(sys.argv[1])
    step = 0
    while time.monotonic() < until:
        step += 1
        print(f"step {step}", flush=True)
        time.sleep(0.02)
    if attempt > 0 or "well" in sys.argv:
        return
    if rank == 1 and "raises" in sys.argv:
        sys.held = Held()
        raise ValueError("no such batch")
    if rank == 1:
        time.sleep(1e6)
    lock = threading.Lock()
    lock.acquire()
    names["all_reduce"](lock)


main()
