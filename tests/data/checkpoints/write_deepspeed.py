"""DeepSpeed's ZeRO sets: DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 write_deepspeed.py STAGE FOLDER [bf16]."""
import sys

import deepspeed
import torch

stage, out, *rest = sys.argv[1:]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 3))
config = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": int(stage)},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "bf16": {"enabled": bool(rest)},
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), config=config)
for step in (1, 2, 3, 4):
    engine.backward(engine(torch.ones(2, 12, dtype=torch.bfloat16 if rest else torch.float32)).float().sum())
    engine.step()
    if step % 2 == 0:
        engine.save_checkpoint(out)
