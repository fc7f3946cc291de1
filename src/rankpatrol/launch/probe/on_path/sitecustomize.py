# ruff: file-ignore[os-path-dirname, os-path-abspath, os-path-join] - pathlib is a slow import for a user's interpreter
# ruff: file-ignore[implicit-namespace-package] - this folder is no package, but a place on sys.path
"""Python runs this at each start below a shim: it starts the probe in the rank, and is nothing anywhere else.

The `sitecustomize` that it hides runs as it would without us. It stands alone in its folder: each name in there hides a user's.
"""

from __future__ import annotations

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_WORDS = ("RANKPATROL_MARKS_FD", "RANKPATROL_PROBE_PARENT", "RANKPATROL_PROBE_SOCKET", "RANKPATROL_STACKS_FD")


def _take_words() -> dict[str, str]:
    """What the shim told us, taken out of the environment: what this process starts finds it as its user had it."""
    told = {name: os.environ.pop(name) for name in _WORDS if name in os.environ}
    if told:
        os.environ.pop("PYTHONPATH", None)
        users = os.environ.pop("RANKPATROL_USER_PYTHONPATH", None)
        if users is not None:
            os.environ["PYTHONPATH"] = users
    return told


def _is_rank(told: dict[str, str]) -> bool:
    """True in the shim's own child, which leads a session; what fell to the shim since its parent died does not."""
    return len(told) == len(_WORDS) and told["RANKPATROL_PROBE_PARENT"] == str(os.getppid()) and os.getsid(0) == os.getpid()


def _start(told: dict[str, str]) -> None:
    import importlib.util  # ruff: ignore[PLC0415] - in the rank alone

    folder = os.path.dirname(_HERE)
    # Under a name of its own, whichever `rankpatrol` or `probe` the training has.
    spec = importlib.util.spec_from_file_location(
        "_rankpatrol_probe", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is not None and spec.loader is not None:
        package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
        start = importlib.import_module(spec.name + ".start").start
        start(int(told["RANKPATROL_MARKS_FD"]), told["RANKPATROL_PROBE_SOCKET"], int(told["RANKPATROL_STACKS_FD"]))


def _run_users() -> None:
    """Import the user's `sitecustomize`. That there is none, or what it raises, is `site`'s to report, as it would be without us."""
    after = sys.path[sys.path.index(_HERE) + 1 :] if _HERE in sys.path else []
    sys.path[:] = [place for place in sys.path if place != _HERE]
    if vars(sys.modules.get(__name__, sys)) is globals():
        del sys.modules[__name__]
        __import__(__name__)
    else:
        _run_next([place for place in after if place != _HERE])


def _run_next(places: list[str]) -> None:
    """Another `sitecustomize` runs us instead of `site`, and holds the name: the next one runs as we do."""
    import importlib.machinery  # ruff: ignore[PLC0415] - hardly ever
    import importlib.util  # ruff: ignore[PLC0415]

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", places)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_told = _take_words()
if _told and _is_rank(_told):
    try:  # ruff: ignore[SIM105] - contextlib is not imported for our sake
        _start(_told)
    except Exception:  # ruff: ignore[BLE001, S110] - whatever is wrong with us, the training starts
        pass
_run_users()
