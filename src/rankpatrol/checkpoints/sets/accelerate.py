"""Accelerate's `save_state`: weights, optimizers, schedulers, and `random_states_N.pkl` of each rank, which is written last.

See `save_accelerator_state` in accelerate/checkpointing.py.
"""

import re
from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.report import lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "accelerate"
_RANDOM: Final = re.compile(r"random_states_\d+\.pkl")
_WEIGHTS: Final = re.compile(r"(?:model|pytorch_model).*\.(?:safetensors|bin|index\.json)")
_OPTIMIZER: Final = re.compile(r"optimizer.*\.bin")


def matches(view: SetView) -> bool:
    """The random states by accelerate's name."""
    return bool(view.named(_RANDOM))


def check(view: SetView) -> Iterator[Problem]:
    """Optimizers come with the weights that they are for; where those are sharded, they are in folders."""
    if view.named(_OPTIMIZER) and not view.named(_WEIGHTS) and not view.folders:
        yield view.problem("model.safetensors", lacking("is not there, nor any other file of weights, though the optimizer is"))
