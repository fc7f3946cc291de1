"""A small training whose rank 3 reads through loader processes. The device file stands for a GPU: a lock on it for its memory.

torch_training.py DEVICE BLOCKED STEPS: the block named BLOCKED is a FIFO, where there is one, and whoever reads it waits for ever.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ["RANK"])


def say(what, **more):
    os.write(1, json.dumps({"rank": RANK, "what": what, "at": time.time(), "pid": os.getpid(), **more}).encode() + b"\n")


class Blocks(Dataset):
    def __init__(self, blocked):
        self.blocked = Path(blocked)

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index >= 8 and self.blocked.exists():
            self.blocked.read_bytes()
        return torch.ones(4) * index


def main():
    device, blocked, steps = sys.argv[1:]
    if RANK == 3:
        # As a CUDA context: opened before the loader processes are forked, which inherit it; gone with the last descriptor.
        gpu = os.open(device, os.O_RDWR)
        try:
            fcntl.flock(gpu, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("out of memory")
            sys.exit(1)
    dist.init_process_group("gloo")
    batches = iter(DataLoader(Blocks(blocked), batch_size=1, num_workers=2 if RANK == 3 else 0, prefetch_factor=2 if RANK == 3 else None))
    try:
        for step in range(int(steps)):
            batch = next(batches) if RANK == 3 else torch.zeros(1, 4)
            dist.all_reduce(batch)
            say("step", step=step)
    except RuntimeError as problem:
        say("released", why=str(problem)[:120])
        os._exit(1)
    say("finished")
    dist.destroy_process_group()


main()
