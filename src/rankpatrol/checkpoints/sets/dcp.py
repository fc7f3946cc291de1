"""torch's distributed checkpoint (DCP), and what FSDP saves through it: shards, and a `.metadata` that is written last."""

from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.dcp_metadata import METADATA, OF_RANK, Plan, is_metadata, plan_beside
from rankpatrol.checkpoints.dcp_shard import SUFFIX
from rankpatrol.checkpoints.report import good, lacking
from rankpatrol.checkpoints.sets.dcp_steps import differing_steps
from rankpatrol.checkpoints.sets.view import Problem, SetView

NAME = "dcp"
_SHOWN: Final = 20


def matches(view: SetView) -> bool:
    """Shards or their metadata."""
    return any(is_metadata(name) or name.endswith(SUFFIX) for name in view.sizes)


def check(view: SetView) -> Iterator[Problem]:
    """The metadata is there, and so is every file that it places chunks in; how long they are, each file's own check tells."""
    described = [METADATA] if METADATA in view.sizes else sorted(view.named(OF_RANK))
    if not described:
        shards = sum(name.endswith(SUFFIX) for name in view.sizes)
        yield view.problem(METADATA, lacking(f"is not there beside {shards} shards: it is written last, so the save was not finished"))
    for metadata in described:
        plan = plan_beside(view.folder / metadata)
        yield from _absent(view, metadata, plan) if isinstance(plan, Plan) else ()
    yield from _of_several_saves(view)
    ranks = {int(match["rank"]) for match in view.named(OF_RANK).values()}
    for rank in sorted(set(range(max(ranks, default=-1) + 1)) - ranks) if METADATA not in described else ():
        yield view.problem(f"__{rank}{METADATA}", lacking("is not there, though other ranks have theirs"))


def _of_several_saves(view: SetView) -> Iterator[Problem]:
    """A doubt, and no verdict."""
    steps = differing_steps(view.folder) if METADATA in view.sizes else []
    for behind in steps[:1]:
        ahead = steps[-1]
        said = f"holds an optimizer that stands at step {behind.step}, {ahead.shard} at {ahead.step}"
        yield view.problem(behind.shard, good(f"{said}: whether both are of one save is not known"))


def _absent(view: SetView, metadata: str, plan: Plan) -> Iterator[Problem]:
    absent = sorted({stored.file for stored in plan.stored} - set(view.sizes))
    for name in absent[:_SHOWN]:
        chunks = [stored for stored in plan.stored if stored.file == name]
        said = f"is not there, though {metadata} places {len(chunks)} chunks in it, the first of {chunks[0].name!a}"
        yield view.problem(name, lacking(said, key=chunks[0].name))
