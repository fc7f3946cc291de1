"""DeepSpeed: one file of model states a model-parallel rank, and with ZeRO one of optimizer states for each of its data-parallel ranks.

Names and keys as in deepspeed/runtime/engine.py (`_get_ckpt_name`, `_get_zero_ckpt_name`, `_save_checkpoint`).
"""

import re
from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.report import corrupt, lacking
from rankpatrol.checkpoints.sets.optimizer_steps import odd_optimizers
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "deepspeed"
# The tag that DeepSpeed chooses; one of the user's own may count otherwise.
_FOLDER: Final = re.compile(r"global_step(\d{1,15})")
_MODEL: Final = re.compile(r"(?:zero_pp_rank_(?P<dp>\d+)_)?mp_rank_(?P<mp>\d+)_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(?P<kind>(?:[a-z]+\d*_)?)zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")
_PIPELINE: Final = re.compile(r"layer_\d+-model_\d+-model_states\.pt")


def matches(view: SetView) -> bool:
    """Files by DeepSpeed's names."""
    return bool(view.named(_MODEL) or view.named(_OPTIMIZER))


def check(view: SetView) -> Iterator[Problem]:
    """All ranks' files, all of one step, and that the one of the directory's name."""
    models, optimizers = view.named(_MODEL), view.named(_OPTIMIZER)
    if not models:
        yield view.problem("mp_rank_00_model_states.pt", lacking(f"is not there beside {len(optimizers)} files of optimizer states"))
        return
    yield from _steps(view, list(models))
    if not _only_own_nodes(view, list(models)):
        yield from _missing_models(view, models)
        yield from _missing_optimizers(view, models, optimizers)
    yield from odd_optimizers(view, list(optimizers))


def _steps(view: SetView, models: list[str]) -> Iterator[Problem]:
    named = view.step_by(_FOLDER)
    for name in models:
        inside = view.inside(name)
        step = None if inside is None else inside.number("global_steps")
        if step is not None and named is not None and step != named:
            yield view.problem(name, corrupt(f"is of another step: its global_steps is {step}, not {named}", key="global_steps"))


def _only_own_nodes(view: SetView, models: list[str]) -> bool:
    """With use_node_local_storage each node keeps its own ranks' files alone."""
    inside = [view.inside(name) for name in models]
    return any(one is not None and one.at("ds_config", "checkpoint", "use_node_local_storage") is True for one in inside)


def _told(view: SetView, models: list[str], key: str) -> int | None:
    """A number that the model states tell, where they agree."""
    told = {inside.number(key) for name in models if (inside := view.inside(name)) is not None}
    return told.pop() if len(told) == 1 else None


def _missing_models(view: SetView, models: dict[str, re.Match[str]]) -> Iterator[Problem]:
    ranks = {int(match["mp"]) for match in models.values()}
    # Pipelines number their files by stage as well, which the size told inside does not count.
    told = None if view.named(_PIPELINE) else _told(view, list(models), "mp_world_size")
    sharded = {int(match["dp"]) for match in models.values() if match["dp"]}
    dp_size = _told(view, list(models), "dp_world_size") if sharded else None
    for mp in range(max(max(ranks) + 1, told or 0)):
        for dp in range(max(max(sharded) + 1, dp_size or 0)) if sharded else (None,):
            name = f"mp_rank_{mp:02d}_model_states.pt" if dp is None else f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"
            if name not in models and f"mp_rank_{mp:02d}_model_states.pt" not in models:
                yield view.problem(name, lacking("is not there, though the other ranks' files are"))


def _missing_optimizers(view: SetView, models: dict[str, re.Match[str]], optimizers: dict[str, re.Match[str]]) -> Iterator[Problem]:
    dp_size = _told(view, list(models), "dp_world_size")
    if not optimizers:
        stages = [inside.number("ds_config", "zero_optimization", "stage") for name in models if (inside := view.inside(name))]
        if not any(stages) or dp_size is None:
            return
    last = max((int(match["dp"]) for match in optimizers.values()), default=-1)
    kind = next((match["kind"] for match in optimizers.values()), "")
    for mp in sorted({int(match["mp"]) for match in (*models.values(), *optimizers.values())}):
        for dp in range(max(last + 1, dp_size or 0)):
            name = f"{kind}zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"
            if name not in optimizers:
                told = f"dp_world_size is {dp_size}" if dp_size else f"there are others up to {last}"
                yield view.problem(name, lacking(f"is not there, though {told}"))
