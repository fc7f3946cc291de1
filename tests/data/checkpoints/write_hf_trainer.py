"""Hugging Face's Trainer, on two ranks, plain or through DeepSpeed: torchrun --nproc-per-node 2 write_hf_trainer.py FOLDER [deepspeed]."""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        ids = torch.arange(8) + at % 16
        return {"input_ids": ids, "labels": ids}


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=1))
zero = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_force_ds_cpu_optimizer": False,
}
more = {"deepspeed": zero, "learning_rate": 1e-3} if sys.argv[2:] else {}
arguments = TrainingArguments(
    sys.argv[1], max_steps=4, save_steps=2, per_device_train_batch_size=2, use_cpu=True, report_to=[], logging_steps=1, **more
)
Trainer(model, arguments, train_dataset=Numbers()).train()
