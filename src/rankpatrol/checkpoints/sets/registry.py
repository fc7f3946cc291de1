"""All layouts of sets, and whether a directory is one."""

import math
from pathlib import Path
from typing import Final

from rankpatrol.checkpoints.sets import accelerate, dcp, deepspeed, hf_trainer, lightning, megatron, pointer, ranked, weight_index
from rankpatrol.checkpoints.sets.view import SetLayout, SetView, Tree, read_tree, views
from rankpatrol.checkpoints.steps import called_step, step_in_directory_name
from rankpatrol.core.errors import PatrolError

# The first that matches names the set.
SET_LAYOUTS: Final[tuple[SetLayout, ...]] = (
    lightning,
    hf_trainer,
    deepspeed,
    megatron,
    accelerate,
    dcp,
    weight_index,
    pointer,
    ranked,
)
# These alone may as well be those of a shelf of checkpoints.
_OF_A_SHELF_TOO: Final[tuple[SetLayout, ...]] = (pointer, ranked)


def layouts_of(view: SetView) -> list[SetLayout]:
    """The layouts that a folder is in, the naming one first."""
    return [layout for layout in SET_LAYOUTS if layout.matches(view)]


def set_tree(directory: Path) -> Tree | None:
    """All of a directory that is one checkpoint: by its own files, or, where its name tells a step, by those of its folders; else None."""
    try:
        tree = read_tree(directory)
    except PatrolError:
        return None
    all_views = views(directory, tree, math.inf)  # what a directory is does not change with its age
    named = directory.suffix == ".ckpt" or step_in_directory_name(directory.name) is not None
    if not named and _tells_steps(all_views[0]):
        return None
    of_its_own = any(layout not in _OF_A_SHELF_TOO for layout in layouts_of(all_views[0]))
    return tree if of_its_own or (named and any(layouts_of(view) for view in all_views)) else None


def _tells_steps(view: SetView) -> bool:
    """Whether files or folders tell steps of their own: then they are several checkpoints on a shelf."""
    return any(called_step(Path(name).stem) is not None for name in view.sizes) or any(map(step_in_directory_name, view.folders))
