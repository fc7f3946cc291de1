"""Lets us know when the training has imported a module. We import none of them ourselves."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Install = Callable[[ModuleType], None]


class Watcher:
    """A finder that finds what the others find, and calls `install` with the module once it has run."""

    def __init__(self, wanted: dict[str, Install]) -> None:
        self._wanted = wanted

    def start(self) -> None:
        """Modules that are there already (a .pth file may import) are taken as they are."""
        for name in [name for name in self._wanted if name in sys.modules]:
            self._wanted.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._wanted:
            return None
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        try:
            run_module = loader.exec_module
            loader.exec_module = lambda module: self._run(run_module, loader, module)
        except AttributeError:
            return  # an unusual loader: the module is found as it would be without us

    def _run(self, run_module: Install, loader: Any, module: ModuleType) -> None:
        # The loader stays with the module for good: it gets its own method back.
        loader.__dict__.pop("exec_module", None)
        run_module(module)
        install = self._wanted.pop(module.__name__, None)
        if install is not None:
            install(module)
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
