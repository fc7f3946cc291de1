"""FSDP through torch's distributed checkpoint, and one file a rank: torchrun --nproc-per-node 2 write_fsdp.py FOLDER."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def local(value):
    return value.to_local() if hasattr(value, "to_local") else value


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 3))
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.AdamW(model.parameters())
for step in (1, 2, 3, 4):
    model(torch.ones(2, 12)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0:
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": state, "step": step}, checkpoint_id=f"{sys.argv[1]}/dcp_fsdp/step_{step}")
        folder = f"{sys.argv[1]}/fsdp_ranks/step_{step}"
        os.makedirs(folder, exist_ok=True)
        of = f"world_size_2_rank_{dist.get_rank()}.pt"
        torch.save({name: local(value) for name, value in model.state_dict().items()}, f"{folder}/model_{of}")
        own = {key: {name: local(value) for name, value in kept.items()} for key, kept in optimizer.state_dict()["state"].items()}
        torch.save(own, f"{folder}/optim_{of}")
dist.barrier()
dist.destroy_process_group()
