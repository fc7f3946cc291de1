"""At which step the optimizer stands in each rank's shards of a DCP checkpoint: nothing else in them tells of which save they are.

An optimizer's `step` is one small tensor a parameter, written by one rank each. Shards of one save may tell several steps, where parts of a
model were trained later than others: what differs is a doubt, and becomes certain only where a shard is the very one of an older save.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from rankpatrol.checkpoints.dcp_metadata import METADATA, Plan, Stored, plan_beside
from rankpatrol.checkpoints.opened import OpenedFile
from rankpatrol.checkpoints.torch_inside import inside_of
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Record

_STEP: Final = re.compile(r"(?:.*\.)?state\..+\.step")
_SHARD: Final = re.compile(r"__(?P<rank>\d+)_\d+\.distcp")
# A rank tells its step by as many values as these at least, all alike, and no more are read.
_LEAST, _MOST = 2, 4
_OLDER_MOST: Final = 3


class StepOf(Record, frozen=True):
    """The step that all that was read of one rank's shards agree on, and one of these shards."""

    rank: int
    step: int
    shard: str


def differing_steps(folder: Path) -> list[StepOf]:
    """Each rank's step, lowest first, where they are not all the same; nothing where there is no such difference, or it cannot be read."""
    plan = plan_beside(folder / METADATA)
    if not isinstance(plan, Plan):
        return []
    found = [told for rank, stored in _by_rank(plan).items() if (told := _step_of(folder, rank, stored)) is not None]
    return sorted(found, key=lambda each: (each.step, each.rank)) if len({each.step for each in found}) > 1 else []


def left_over(folder: Path, older: list[Path]) -> tuple[StepOf, Path] | None:
    """A shard behind the others' step that is byte by byte the one of an older checkpoint, and which; None where that is not so."""
    steps = differing_steps(folder)
    behind = [each for each in steps if each.step < steps[-1].step]
    for shard in behind:
        for other in older[:_OLDER_MOST]:
            if _same(folder / shard.shard, other / shard.shard) and not _same(folder / steps[-1].shard, other / steps[-1].shard):
                return shard, other
    return None


def _by_rank(plan: Plan) -> dict[int, list[Stored]]:
    by_rank: defaultdict[int, list[Stored]] = defaultdict(list)
    for stored in plan.stored:
        shard = _SHARD.fullmatch(stored.file)
        if shard is not None and _STEP.fullmatch(stored.name) and not stored.packed and len(by_rank[int(shard["rank"])]) < _MOST:
            by_rank[int(shard["rank"])].append(stored)
    return by_rank


def _step_of(folder: Path, rank: int, stored: list[Stored]) -> StepOf | None:
    try:
        steps = list(_numbers(folder, stored))
    except (OSError, PatrolError):
        return None
    return StepOf(rank, steps[0], stored[0].file) if len(steps) >= _LEAST and len(set(steps)) == 1 else None


def _numbers(folder: Path, stored: list[Stored]) -> Iterator[int]:
    for name, inside_it in groupby(stored, key=attrgetter("file")):
        with OpenedFile(folder / name) as file:
            for one in inside_it:
                inside = inside_of(file.part(one.start_bytes, one.length_bytes))
                step = inside.itself() if inside is not None else None
                if step is not None:
                    yield step


def _same(one: Path, other: Path) -> bool:
    try:
        with OpenedFile(one) as here, OpenedFile(other) as there:
            size = here.size_bytes
            return size == there.size_bytes and here.crc32_at(0, size) == there.crc32_at(0, size)
    except (OSError, PatrolError):
        return False
