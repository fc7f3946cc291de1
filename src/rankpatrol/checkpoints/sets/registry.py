"""All layouts of sets, and whether a directory is one."""

from pathlib import Path
from typing import Final

from rankpatrol.checkpoints.sets import accelerate, dcp, deepspeed, hf_trainer, lightning, megatron, pointer, ranked, weight_index
from rankpatrol.checkpoints.sets.view import SetLayout, SetView, read_tree, views
from rankpatrol.checkpoints.steps import step_in_directory_name
from rankpatrol.core.errors import PatrolError

# The first that matches names the set.
SET_LAYOUTS: Final = (
    SetLayout(lightning.NAME, lightning.matches, lightning.check),
    SetLayout(hf_trainer.NAME, hf_trainer.matches, hf_trainer.check),
    SetLayout(deepspeed.NAME, deepspeed.matches, deepspeed.check),
    SetLayout(megatron.NAME, megatron.matches, megatron.check),
    SetLayout(accelerate.NAME, accelerate.matches, accelerate.check),
    SetLayout(dcp.NAME, dcp.matches, dcp.check),
    SetLayout(weight_index.NAME, weight_index.matches, weight_index.check),
    SetLayout(pointer.NAME, pointer.matches, pointer.check),
    SetLayout(ranked.NAME, ranked.matches, ranked.check),
)


def layouts_of(view: SetView) -> list[SetLayout]:
    """The layouts that a folder is in, the naming one first."""
    return [layout for layout in SET_LAYOUTS if layout.matches(view)]


def is_set(directory: Path) -> bool:
    """Whether a directory is one checkpoint: by its own files, or, where its name tells a step, by those of its folders."""
    try:
        tree = read_tree(directory)
    except PatrolError:
        return False
    all_views = views(directory, tree)
    # A pointer and rank numbers alone may as well be those of a shelf of checkpoints.
    if any(layout.name != ranked.NAME and layout.check is not pointer.check for layout in layouts_of(all_views[0])):
        return True
    named = directory.suffix == ".ckpt" or step_in_directory_name(directory.name) is not None
    return named and any(layouts_of(view) for view in all_views)
