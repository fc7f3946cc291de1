"""Weights in several files with an index (`*.index.json`) that says which tensor is in which; and single files of weights.

See `save_pretrained` in transformers/modeling_utils.py.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from rankpatrol.checkpoints.opened import OpenedFile
from rankpatrol.checkpoints.report import corrupt, lacking, unknown
from rankpatrol.checkpoints.safetensors_file import Header, read_header
from rankpatrol.checkpoints.sets.view import Problem, SetView
from rankpatrol.core.errors import PatrolError

NAME = "weights"
_INDEX: Final = ".index.json"
_SAFETENSORS: Final = ".safetensors"
# model-00001-of-00002.safetensors goes with model.safetensors.index.json.
_PART: Final = re.compile(r"(?P<name>.+)-\d{5}-of-\d{5}(?P<kind>\.safetensors)")


def matches(view: SetView) -> bool:
    """An index, or tensors in this format."""
    return any(name.endswith((_INDEX, _SAFETENSORS)) for name in view.sizes)


def check(view: SetView) -> Iterator[Problem]:
    """Every file that an index names is there and holds the tensors that the index places in it; and parts have an index."""
    parts = {match["name"] + match["kind"] for match in view.named(_PART).values()}
    for index in sorted({f"{name}{_INDEX}" for name in parts} - set(view.sizes)):
        yield view.problem(index, unknown("is not there, which would say what the parts hold"))
    for index in sorted(name for name in view.sizes if name.endswith(_INDEX)):
        described = view.json(index)
        placed = described.get("weight_map") if isinstance(described, dict) else None
        if isinstance(placed, dict):
            yield from _index(view, index, placed)
        elif described is not None:
            yield view.problem(index, corrupt("is damaged: it has no weight_map", key="weight_map"))


def _index(view: SetView, index: str, placed: dict[str, Any]) -> Iterator[Problem]:
    by_file: dict[str, list[str]] = {}
    for tensor, name in placed.items():
        by_file.setdefault(str(name), []).append(tensor)
    for name, tensors in sorted(by_file.items()):
        if name not in view.sizes:
            yield view.problem(name, lacking(f"is not there, though {index} places {len(tensors)} tensors in it", key=tensors[0]))
        elif name.endswith(_SAFETENSORS):
            yield from _held(view, name, tensors, index)


def _held(view: SetView, name: str, tensors: list[str], index: str) -> Iterator[Problem]:
    try:
        with OpenedFile(view.folder / name) as file:
            header = read_header(file)
    except (OSError, PatrolError):
        return
    if isinstance(header, Header):
        there = {tensor.name for tensor in header.tensors}
        for tensor in tensors:
            if tensor not in there:
                yield view.problem(name, lacking(f"does not hold {tensor!a}, which {index} places in it", key=tensor))
                return
