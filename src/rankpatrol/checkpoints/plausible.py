"""A whole checkpoint beside the older ones: does it hold what they hold, and about as much of it? Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

# What its own layout accounts for: how many of these there are may change with the number of ranks.
_ACCOUNTED: Final = re.compile(r".*\.distcp|.*-of-\d+.*|.*world_size_\d+.*|.*_rank_\d+_.*_states\.pt|mp_rank_.*")
# Weights may be split one day and whole the next.
_WEIGHTS: Final = re.compile(r"(?:pytorch_)?model.*")
_RESUMED: Final = re.compile(r"optim|sched|rng_state|random_states|scaler|model|rank#")
_STATES: Final = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors")
_SMALL_BYTES: Final = 1 << 20
_LEAST_SHARE: Final = 0.5

Sizes = Mapping[str, int]


def oddity(sizes: Sizes, older: Sequence[Sizes]) -> tuple[str, str] | None:
    """The name that stands out and why, against the older checkpoints, the newest first; None where nothing does."""
    if not older:
        return None
    here, before = _counted(sizes), _counted(older[0])
    twice = _counted(older[1]) if len(older) > 1 else Counter[str]()
    has_weights = any(_WEIGHTS.fullmatch(name) for name in sizes)
    for kind, count in before.items():
        if here[kind] >= count or (has_weights and _WEIGHTS.fullmatch(kind)):
            continue
        # What only some checkpoints have, such as the best so far, is missed only where it is a state to resume from.
        if twice[kind] >= count or _RESUMED.search(kind):
            name = next(name for name in sorted(older[0], reverse=True) if _kind(name) == kind and name not in sizes)
            return name, f"is not there, though the checkpoint before has it ({count} of its kind there, {here[kind]} here)"
    for name, size in sizes.items():
        then = [earlier[name] for earlier in older[:2] if name in earlier]
        if len(then) == 2 and min(then) > _SMALL_BYTES and size < _LEAST_SHARE * min(then):
            return name, f"has {size} bytes, where the two checkpoints before have {then[0]} and {then[1]}"
    return None


def _counted(sizes: Sizes) -> Counter[str]:
    return Counter(_kind(name) for name in sizes if name.endswith(_STATES) and not _ACCOUNTED.fullmatch(name.rpartition("/")[2]))


def _kind(name: str) -> str:
    """A name without its numbers: those are steps and ranks."""
    return re.sub(r"\d+", "#", name)
