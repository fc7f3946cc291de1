"""Hugging Face's Trainer: `checkpoint-N/` with weights, optimizer, scheduler, random states of each rank, and `trainer_state.json` last.

See `_save_checkpoint` in transformers/trainer.py.
"""

import re
from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.report import corrupt, lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "hf_trainer"
STATE: Final = "trainer_state.json"
_ARGUMENTS: Final = "training_args.bin"
_FOLDER: Final = re.compile(r"checkpoint-(\d{1,15})")
_SAVING_S: Final = 60.0
_RANDOM: Final = re.compile(r"rng_state(?:_\d+)?\.pth")
_WEIGHTS: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|tf_model|diffusion_pytorch_model).*\.(?:safetensors|bin|h5|index\.json)"
)
# Written in place of, or beside, a whole file of weights.
_SHARDED: Final = re.compile(r"global_step\d+|pytorch_model_fsdp.*|optimizer_\d+|fsdp_.*|.*_dcp|shard.*|distributed.*")
_OPTIMIZER: Final = re.compile(r"optimizer.*|.*optim.*")


def matches(view: SetView) -> bool:
    """The trainer's own files; not a mere model, which other programs write as well."""
    return bool(
        STATE in view.sizes or (_ARGUMENTS in view.sizes and view.step_by(_FOLDER) is not None) or view.named(_RANDOM) or _just_begun(view)
    )


def _just_begun(view: SetView) -> bool:
    """A save writes the weights first: a moment later they alone may be there. Later they are what somebody else saved by this name."""
    return (
        _FOLDER.fullmatch(view.folder.name) is not None and bool(view.named(_WEIGHTS)) and view.age_s < _SAVING_S and not _of_others(view)
    )


def _of_others(view: SetView) -> bool:
    return any(name.startswith("random_states_") for name in view.sizes)


def check(view: SetView) -> Iterator[Problem]:
    """All kinds of files are there, and the step inside is the one of the name."""
    sharded = [name for name in view.folders if _SHARDED.fullmatch(name)]
    if STATE not in view.sizes and view.step_by(_FOLDER) is not None:
        yield view.problem(STATE, lacking("is not there: the trainer writes it last, and cannot resume without it"))
    if STATE in view.sizes:
        yield from _step(view)
    if not sharded and not view.named(_WEIGHTS) and not any(name.endswith((".distcp", ".safetensors")) for name in view.sizes):
        yield view.problem("model.safetensors", lacking("is not there, nor any other file of weights"))
    # Random states are saved only with an optimizer (not with save_only_model).
    if view.named(_RANDOM) and not sharded and not view.named(_OPTIMIZER):
        yield view.problem("optimizer.pt", lacking("is not there, though the random states that are saved with it are"))
    if view.named(_RANDOM) and "optimizer.pt" in view.sizes and "scheduler.pt" not in view.sizes:
        yield view.problem("scheduler.pt", lacking("is not there, though the optimizer that is saved with it is"))


def _step(view: SetView) -> Iterator[Problem]:
    state = view.json(STATE)
    step = state.get("global_step") if isinstance(state, dict) else None
    named = view.step_by(_FOLDER)
    if isinstance(step, int) and named is not None and step != named:
        yield view.problem(STATE, corrupt(f"is of another step: its global_step is {step}, not {named}", key="global_step"))
