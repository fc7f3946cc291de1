"""Copied as `sitecustomize.py` onto a training's PYTHONPATH: at the n-th call of one place in torch, one rank does one more thing.

Inert unless AT_CALL is set and names this rank; it runs the next `sitecustomize` on the path too.
"""

from __future__ import annotations  # Python 3.8 reads the annotations below only as text

import datetime as dt
import functools
import importlib
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
    from typing import Any


class _Watch:
    """Finds one module of torch once, and lets `install` at it when it has been imported."""

    def __init__(self, name: str, install: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.install = install

    def find_spec(self, name: str, *_path_and_target: object) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        # One import is all that is wanted; leaving first lets every other finder answer as if we were not here.
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            self.install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # this loader serves this module only
        return spec


def _do_nothing(*_ignored: object) -> None:
    """The other ranks only meet the chosen one where they must."""


def _at_step(module: ModuleType, on_call: Callable[..., None]) -> None:
    module.register_optimizer_step_pre_hook(on_call)


def _at_forward(module: ModuleType, on_call: Callable[..., None]) -> None:
    def before_forward(called: object, _inputs: object) -> None:
        if type(called).__name__ == "DistributedDataParallel":
            on_call()

    module.register_module_forward_pre_hook(before_forward)


def _at_save(module: ModuleType, on_call: Callable[..., None]) -> None:
    # The function below torch.save: what happens here happens inside torch.save, once the file is open.
    _wrap(module, "_save", before=on_call)


def _at_group(module: ModuleType, on_call: Callable[..., None]) -> None:
    def prepare() -> None:
        on_call()
        module.barrier()

    _wrap(module, "init_process_group", after=prepare)


def _at_fetch(module: ModuleType, on_call: Callable[..., None]) -> None:
    """In each loader process of its own: a call is one item of this process."""
    fetcher = module._MapDatasetFetcher
    fetch = fetcher.fetch

    class Dataset:
        """Stands before the user's own, below torch's frames as that does."""

        def __init__(self, users: Any) -> None:
            self.users = users

        def __getitem__(self, index: object) -> Any:
            on_call()
            return self.users[index]

    @functools.wraps(fetch)
    def wrapper(self: Any, indexes: object) -> Any:
        if not isinstance(self.dataset, Dataset):
            self.dataset = Dataset(self.dataset)
        return fetch(self, indexes)

    fetcher.fetch = wrapper


def _at_end(module: ModuleType, on_call: Callable[..., None]) -> None:
    _wrap(module, "destroy_process_group", after=on_call)


def _at_barrier(module: ModuleType, on_call: Callable[..., Any]) -> None:
    _wrap(module, "barrier", instead=on_call)


def _shorten(module: ModuleType, seconds: float) -> None:
    """As if the script itself gave its process groups this time-out."""
    wrapped = module.init_process_group

    @functools.wraps(wrapped)
    def init_process_group(*args: Any, **keywords: Any) -> Any:
        return wrapped(*args, **dict(keywords, timeout=dt.timedelta(seconds=seconds)))

    module.init_process_group = init_process_group  # type: ignore[attr-defined]  # that is what this is for


def _wrap(
    module: ModuleType,
    name: str,
    before: Callable[[], None] = _do_nothing,
    after: Callable[[], None] = _do_nothing,
    instead: Callable[[], Any] = _do_nothing,
) -> None:
    wrapped = getattr(module, name)

    @functools.wraps(wrapped)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        before()
        if instead():
            return None
        result = wrapped(*args, **keywords)
        after()
        return result

    setattr(module, name, wrapper)


_PLACES = {
    "step": ("torch.optim.optimizer", _at_step),
    "forward": ("torch.nn.modules.module", _at_forward),
    "save": ("torch.serialization", _at_save),
    "group": ("torch.distributed.distributed_c10d", _at_group),
    "barrier": ("torch.distributed.distributed_c10d", _at_barrier),
    "fetch": ("torch.utils.data._utils.fetch", _at_fetch),
    "end": ("torch.distributed.distributed_c10d", _at_end),
}


def _make_on_call(plan: dict[str, Any], chore: Callable[..., None], is_chosen: bool) -> Callable[..., Any]:
    calls = [0]
    first, last = plan["call"], plan["call"] + plan.get("times", 1) - 1
    struck: list[dict[str, object]] = []

    def on_call(*_ignored: object) -> Any:
        calls[0] += 1
        told = {"rank": plan["rank"], "step": plan["step"], "pids": [os.getpid()], "others": plan.get("others", [])}
        if plan.get("timed", True):
            told["at_unix_s"] = time.time()
        if not first <= calls[0] <= last:
            return None
        if plan.get("everyone") and not is_chosen:
            chore(plan)
        elif struck or (calls[0] == first and _write_note(plan["note"], told, os.O_EXCL)):
            struck.append(told)
            chore(plan)
            if calls[0] == last:
                _write_note(plan["note"], dict(struck[0], until_unix_s=time.time()), os.O_TRUNC)
            return True if plan["do"] == "skip" else None
        return None  # hooks of torch take anything else for a new input

    return on_call


def _write_note(path: str, told: dict[str, object], flag: int) -> bool:
    """With O_EXCL, true for the first process alone: a later attempt is left alone even where restart counts are not told."""
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | flag, 0o644)
    except OSError:
        return False
    os.write(descriptor, json.dumps(told).encode() + b"\n")
    os.close(descriptor)
    return True


def _follow(text: str) -> None:
    rank = os.environ.get("RANK")
    try:
        plan = json.loads(text)
        is_chosen, everywhere = rank == str(plan["rank"]), plan.get("everyone") or plan["at"] in {"group", "print"}
        if rank is not None and "group_timeout_s" in plan:
            sys.meta_path.insert(
                0, _Watch("torch.distributed.distributed_c10d", functools.partial(_shorten, seconds=plan["group_timeout_s"]))
            )
        if rank is None or not (is_chosen or everywhere):
            return
        chores = importlib.import_module("_site_chores")
        chore = getattr(chores, plan["do"])
        getattr(chores, "before_" + plan["do"], _do_nothing)(plan)
        if plan["at"] == "print":
            chore(plan)
        elif os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            module, install = _PLACES[plan["at"]]
            does = is_chosen or plan.get("everyone")
            on_call = _make_on_call(plan, chore, is_chosen) if does else _do_nothing
            sys.meta_path.insert(0, _Watch(module, functools.partial(install, on_call=on_call)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return


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
    if os.environ.get("AT_CALL"):
        _follow(os.environ["AT_CALL"])
    _run_next()
