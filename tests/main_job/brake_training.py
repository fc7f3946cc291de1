"""A rank under torchrun that fails in one way, as its first word tells; without torch, so that it starts at once."""

import os
import sys
import time
from pathlib import Path

how, attempt = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])


# One line each: no two failures have their place in common.
FAILURES = (
    lambda: int("a"),
    lambda: {}["a"],
    lambda: bytes(256).decode("nonesuch"),
    lambda: 1 / 0,
    lambda: Path("/no/such/file").read_text(),
)


def fail_each_time_elsewhere():
    """As many attempts as the second word says fail, each of something else."""
    print(f"step {attempt + 1}/9 loss 1.0", flush=True)
    if attempt < int(sys.argv[2]):
        FAILURES[attempt]()


def save_where_nothing_fits():
    print("step 1/9 loss 1.0", flush=True)
    with Path("/dev/full").open("wb", buffering=0) as checkpoint:
        checkpoint.write(b"weights")


def load_more_than_there_is():
    """Join the small control group of the second word, and load until the kernel ends it."""
    Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
    loaded = []
    while True:
        loaded.append(bytearray(os.urandom(1 << 20)))


if os.environ["RANK"] == "0":
    {"elsewhere": fail_each_time_elsewhere, "disk": save_where_nothing_fits, "memory": load_more_than_there_is}[how]()
elif how != "elsewhere" or attempt < int(sys.argv[2]):
    time.sleep(600)  # the peer that waits
