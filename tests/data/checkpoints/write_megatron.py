"""Megatron-LM's legacy layout, by torch alone and by its source (megatron/training/checkpointing.py): tensor parallel 2, pipeline 1."""
import argparse, os, sys, torch

out = sys.argv[1]
torch.manual_seed(0)
for step in (2, 4):
    for tp in range(2):
        folder = f"{out}/iter_{step:07d}/mp_rank_{tp:02d}"
        os.makedirs(folder)
        arguments = argparse.Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1, world_size=2, iteration=step)
        state = {
            "args": arguments, "checkpoint_version": 3.0, "iteration": step, "num_floating_point_operations_so_far": 10 * step,
            "model": {"language_model": {"weight": torch.randn(20, 12)}}, "opt_param_scheduler": {"num_steps": step},
            "optimizer": {"optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": torch.randn(20, 12)}}, "param_groups": [{"lr": 1e-3}]}},
            "rng_state": [{"random_rng_state": (3, (1, 2, 3), None), "torch_rng_state": torch.get_rng_state()[:64].clone()}],
        }
        torch.save(state, f"{folder}/model_optim_rng.pt")
    with open(f"{out}/latest_checkpointed_iteration.txt", "w") as f:
        f.write(str(step))
