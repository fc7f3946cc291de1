"""Weights in one safetensors file and in several, and accelerate's save_state: python write_weights.py FOLDER."""
import sys, torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

out = sys.argv[1]
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=1))
model.save_pretrained(f"{out}/weights/step_2", max_shard_size="3KB")
with torch.no_grad():
    for p in model.parameters():
        p += 1
model.save_pretrained(f"{out}/weights/step_4", max_shard_size="3KB")
net = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Linear(20, 3))
accelerator = Accelerator(cpu=True)
net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
for step in (2, 4):
    accelerator.backward(net(torch.ones(2, 12)).sum())
    optimizer.step()
    accelerator.save_state(f"{out}/accelerate/checkpoint_{step}")
