"""A small data-parallel training: an MLP on shard files, with checkpoints and resume.

    python examples/make_data.py /tmp/data --samples 15360
    torchrun --standalone --nproc-per-node 4 examples/train.py --data /tmp/data --checkpoints /tmp/checkpoints

Runs with gloo on CPUs, with nccl where CUDA is there.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

FEATURES = 64


class Blocks(Dataset):
    """One shard file is one block of samples, and one item: rows of FEATURES inputs and a target."""

    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("block-*.bin"))
        if not self.paths:
            raise FileNotFoundError(f"no block-*.bin in {folder}")

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with self.paths[index].open("rb") as shard:
            data = bytearray(shard.read())
        rows = torch.frombuffer(data, dtype=torch.float32).view(-1, FEATURES + 1)
        return rows[:, :FEATURES], rows[:, FEATURES:]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder of block-*.bin files, see make_data.py")
    parser.add_argument("--checkpoints", default="checkpoints", help="folder for step_000010.pt and the like")
    parser.add_argument("--resume", default="", help="checkpoint to go on from; empty: start from scratch")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="loader processes of each rank")
    parser.add_argument("--step-seconds", type=float, default=0.2, help="a step takes at least this long")
    return parser.parse_args()


def build_model(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def resume(path, model, optimizer, device):
    """Returns the number of steps done before."""
    if not path:
        return 0
    state = torch.load(path, map_location=device, weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(folder, step, model, optimizer):
    """Rank 0 writes, whole or not at all; the others wait until it is there."""
    if dist.get_rank() == 0:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step_{step:06d}.pt"
        scratch = path.with_suffix(".tmp")
        torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, scratch)
        scratch.replace(path)
    dist.barrier()


def batches(args, done):
    """Block i belongs to rank i % world size; the blocks of steps that are done are not read again."""
    blocks = Blocks(args.data)
    rest = Subset(blocks, range(done * dist.get_world_size(), len(blocks)))
    sampler = DistributedSampler(rest, shuffle=False, drop_last=True)
    return DataLoader(rest, batch_size=None, sampler=sampler, num_workers=args.workers)


def train(args, device):
    model, optimizer = build_model(device)
    loss_function = nn.MSELoss()
    done = resume(args.resume, model, optimizer, device)
    loader = batches(args, done)
    steps = min(args.steps, done + len(loader))
    began = time.perf_counter()
    for step, (inputs, targets) in enumerate(loader, start=done + 1):
        if step > steps:
            break
        optimizer.zero_grad()
        loss = loss_function(model(inputs.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, args.step_seconds - (time.perf_counter() - began)))
        if dist.get_rank() == 0:
            print(f"step {step}/{steps} loss {loss.item():.3f} ({time.perf_counter() - began:.2f} s)", flush=True)
        if step % args.save_every == 0 or step == steps:
            save(args.checkpoints, step, model, optimizer)
        began = time.perf_counter()


def main():
    args = parse_arguments()
    torch.set_num_threads(1)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    train(args, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
