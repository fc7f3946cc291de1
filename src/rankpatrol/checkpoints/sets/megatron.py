"""Megatron-LM: `iter_0000100/` with a folder for each model-parallel rank, or a DCP checkpoint beside `common.pt`.

Names and keys as in megatron/training/checkpointing.py (`get_checkpoint_name`, `generate_state_dict`).
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from rankpatrol.checkpoints.report import corrupt, lacking
from rankpatrol.checkpoints.sets.view import Problem, SetView
from rankpatrol.checkpoints.torch_inside import TorchInside

NAME = "megatron"
COMMON: Final = "common.pt"
_FOLDER: Final = re.compile(r"iter_(\d{1,15})")
_RANK: Final = re.compile(r"mp_rank_(?P<tp>\d+)(?:_(?P<pp>\d+))?(?:_(?P<ep>\d+))?")
_STATES: Final = ("model_optim_rng.pt", "model_rng.pt")
_OPTIMIZER: Final = "distrib_optim.pt"
_DCP_MARK: Final = "metadata.json"


def matches(view: SetView) -> bool:
    """Folders by rank, or one rank's folder, or the common part of a sharded one."""
    return bool(_ranks(view)) or COMMON in view.sizes or _is_rank(view)


def check(view: SetView) -> Iterator[Problem]:
    """Every rank has its folder, and each says the iteration of the checkpoint's name."""
    if _is_rank(view):
        yield from _rank(view)
    elif COMMON in view.sizes:
        yield from _iteration(view, COMMON, view.inside(COMMON))
        if _DCP_MARK not in view.sizes:
            yield view.problem(_DCP_MARK, lacking("is not there: it is written last, so the save was not finished"))
        elif ".metadata" not in view.sizes and not view.folders:
            yield view.problem(".metadata", lacking(f"is not there, though {COMMON} is"))
    if _DCP_MARK in view.sizes and COMMON not in view.sizes and ".metadata" in view.sizes:
        yield view.problem(COMMON, lacking("is not there, though the shards are"))
    yield from _missing(view)


def _ranks(view: SetView) -> dict[str, re.Match[str]]:
    return {name: match for name in sorted(view.folders) if (match := _RANK.fullmatch(name))}


def _is_rank(view: SetView) -> bool:
    return _RANK.fullmatch(view.folder.name) is not None and any(name in view.sizes for name in (*_STATES, _OPTIMIZER))


def _rank(view: SetView) -> Iterator[Problem]:
    states = [name for name in _STATES if name in view.sizes]
    if not states:
        yield view.problem(_STATES[0], lacking("is not there beside the rank's optimizer"))
    for name in states:
        yield from _iteration(view, name, view.inside(name))


def _iteration(view: SetView, name: str, inside: TorchInside | None) -> Iterator[Problem]:
    named = view.step_by(_FOLDER)
    step = None if inside is None else inside.number("iteration")
    if step is not None and named is not None and step != named:
        yield view.problem(name, corrupt(f"is of another step: its iteration is {step}, not {named}", key="iteration"))


def _missing(view: SetView) -> Iterator[Problem]:
    """Folders that ranks between the others, or the sizes told in the arguments, call for."""
    ranks = _ranks(view)
    if not ranks:
        return
    folders = {(int(match["tp"]), int(match["pp"] or 0)) for match in ranks.values()}
    with_stage = any(match["pp"] for match in ranks.values())
    if any(match["ep"] for match in ranks.values()):
        return  # experts have a rank of their own, by rules that the names do not tell
    tp_told, pp_told = _sizes(view, next(iter(ranks)))
    tps = max(max(tp for tp, _ in folders) + 1, tp_told)
    pps = max(max(pp for _, pp in folders) + 1, pp_told if with_stage else 1)
    for tp in range(tps):
        for pp in range(pps):
            if (tp, pp) not in folders:
                name = f"mp_rank_{tp:02d}_{pp:03d}" if with_stage else f"mp_rank_{tp:02d}"
                yield view.problem(name, lacking(f"is not there, though there are {tps} tensor-parallel and {pps} pipeline ranks"))
    yield from _missing_files(view, list(ranks))


def _sizes(view: SetView, folder: str) -> tuple[int, int]:
    for name in _STATES:
        inside = view.inside(f"{folder}/{name}")
        if inside is not None:
            told = (inside.number("args", f"{kind}_model_parallel_size") or 1 for kind in ("tensor", "pipeline"))
            return next(told), next(told)
    return 1, 1


def _missing_files(view: SetView, folders: list[str]) -> Iterator[Problem]:
    """Every rank's folder holds the same files."""
    held: dict[str, set[str]] = {}
    for folder in folders:
        with contextlib.suppress(OSError):  # removed meanwhile
            held[folder] = {path.name for path in (view.folder / folder).iterdir()}
    known = {name for names in held.values() for name in names if name in {*_STATES, _OPTIMIZER}}
    for folder, names in held.items():
        # In data parallelism of experts only some ranks write an optimizer, but each writes its states.
        for name in sorted(known - names):
            yield view.problem(f"{folder}/{name}", lacking("is not there, though other ranks have theirs"))
