"""The recorded surfaces of torch's versions, and modules that look as a version's do."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parents[1] / "data" / "torch_surfaces"
SURFACES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text())
    for path in sorted(FOLDER.glob("*.json"), key=lambda path: [int(number) for number in path.stem.split(".")])
}
VERSIONS = tuple(SURFACES)
C10D = "torch/distributed/distributed_c10d.py"
ELASTIC = "torch/distributed/elastic/"
_DEFAULT = re.compile(r"=[^,)]+")


def at_least(version: str, wanted: str) -> bool:
    return [int(number) for number in version.split(".")[:2]] >= [int(number) for number in wanted.split(".")]


def module_of(surface: dict[str, Any], file: str) -> ModuleType:
    """A module with the recorded functions of this file, which return a new object; its classes are there with their methods."""
    made = ModuleType(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    for place, signature in surface["signatures"].items():
        recorded, _, name = place.partition(":")
        if recorded != file or signature == "property":
            continue
        owner: Any = made
        *classes, last = name.split(".")
        for each in classes:
            if not hasattr(owner, each):
                setattr(owner, each, type(each, (), {}))
            owner = getattr(owner, each)
        setattr(owner, last, _function(last, signature))
    return made


def _function(name: str, signature: str) -> Callable[..., object]:
    space: dict[str, Callable[..., object]] = {}
    exec(f"def {name}{_DEFAULT.sub('=None', signature)}:\n    return object()", space)
    return space[name]
