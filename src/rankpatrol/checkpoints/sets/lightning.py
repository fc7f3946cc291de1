"""A directory that Lightning saved (FSDP, model parallel, DeepSpeed): `meta.pt` beside the shards, with the step of the name."""

from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.lightning_file import other_step
from rankpatrol.checkpoints.report import lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "lightning_sharded"
META: Final = "meta.pt"


def matches(view: SetView) -> bool:
    """The file of everything but tensors, or Lightning's suffix."""
    return META in view.sizes or (view.folder.suffix == ".ckpt" and ".metadata" in view.sizes)


def check(view: SetView) -> Iterator[Problem]:
    """`meta.pt` is there and of the step that the name tells."""
    if META not in view.sizes:
        yield view.problem(META, lacking("is not there, though the shards are"))
        return
    wrong = other_step(view.inside(META), view.folder.name)
    if wrong is not None:
        yield view.problem(META, wrong)
