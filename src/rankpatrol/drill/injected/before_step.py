"""Copied as `sitecustomize.py` onto a training's PYTHONPATH: one rank sleeps for ever before one optimizer step.

Inert unless its variables are set and name this rank; it runs the next `sitecustomize` on the path too.
"""

from __future__ import annotations  # Python 3.8 reads the annotations below only as text

import importlib.machinery
import importlib.util
import json
import os
import sys
import time

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_OPTIMIZER = "torch.optim.optimizer"


class _Watch:
    """Finds torch's optimizer module once, and registers a hook when it has been imported."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self.hook = hook

    def find_spec(self, name: str, *_path_and_target: object) -> importlib.machinery.ModuleSpec | None:
        if name != _OPTIMIZER:
            return None
        # One import is all that is wanted; leaving first lets every other finder answer as if we were not here.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            register = getattr(module, "register_optimizer_step_pre_hook", None)
            if register is not None:
                register(self.hook)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader serves this module only
        return spec


def _make_hook(rank: int, step: int, note: str) -> Callable[..., None]:
    seen = [0]

    def before_step(*_ignored: object) -> None:
        seen[0] += 1
        if seen[0] == step and _write_note(note, rank, step):
            while True:
                time.sleep(3600)

    return before_step


def _write_note(path: str, rank: int, step: int) -> bool:
    """True for the first process that writes it: a later attempt is left alone even where restart counts are not told."""
    line = json.dumps({"rank": rank, "step": step, "at_unix_s": time.time(), "pid": os.getpid()})
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except OSError:
        return False
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)
    return True


def _watch_step() -> None:
    want = {name: os.environ.get("BEFORE_STEP_" + name, "") for name in ("RANK", "STEP", "NOTE")}
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if not all(want.values()) or not first_attempt or os.environ.get("RANK") != want["RANK"] or not want["STEP"].isdigit():
        return
    watch = _Watch(_make_hook(int(want["RANK"]), int(want["STEP"]), want["NOTE"]))
    sys.meta_path.insert(0, watch)


def _run_next() -> None:
    """Run the `sitecustomize` that this one hides. What it raises is reported by `site`, as it would be without us."""
    here = os.path.dirname(os.path.realpath(__file__))  # ruff: ignore[PTH120] - pathlib is a slow import for a user's interpreter
    places = [os.path.realpath(place) for place in sys.path]
    rest = sys.path[places.index(here) + 1 :] if here in places else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [place for place in rest if os.path.realpath(place) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# Under its copied name only: the drill imports this file to learn where it lies. By file, since whoever chains to it picks `__name__`.
if __file__.endswith("sitecustomize.py"):
    _watch_step()
    _run_next()
