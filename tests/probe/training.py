"""A rank that stops at each point of a training, says so, and goes on when a byte comes through its own pipe: `training.py FOLDER`."""

import datetime as dt
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])
LINE = os.open(FOLDER / f"go.{RANK}", os.O_RDONLY)


def at(point):
    # In one write: lines of two ranks share a pipe.
    os.write(1, f"{point} {RANK}\n".encode())
    os.read(LINE, 1)


class Waits:
    """A file that is saved to."""

    def __init__(self):
        self.told = False

    def write(self, content):
        if not self.told:
            self.told = True
            at("checkpoint")
        return len(content)

    def flush(self):
        pass


class Meddles(Dataset):
    """Steps an optimizer in the loader process, and tells what of the probe is there."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        weight = torch.nn.Parameter(torch.ones(1))
        torch.optim.SGD([weight], lr=0.1).step()
        threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        return ["pt_workerserver" in threads, "_rankpatrol_probe" in sys.modules]


def main():
    torch.set_num_threads(1)
    at("start")
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=60))
    dist.new_group([1], timeout=dt.timedelta(seconds=44))
    both = dist.new_group([0, 1], timeout=dt.timedelta(seconds=33), group_desc="both")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at("joined")
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    at("stepped")
    for method in ("fork", "spawn"):
        loader = DataLoader(Meddles(), batch_size=None, num_workers=1, multiprocessing_context=method)
        found = list(loader)
        assert found == [[False, method == "fork"]] * 2, found
    at("loaded")
    torch.save(model.module.state_dict(), Waits())
    model.eval()
    at("evaluates")
    model.train()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if RANK == 1:
        at("waits")
    dist.all_reduce(torch.ones(3), group=both)
    dist.destroy_process_group()
    at("left")


if __name__ == "__main__":
    main()
