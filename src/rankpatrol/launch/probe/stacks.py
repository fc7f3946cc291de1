"""Stacks without ptrace: on SIGURG, which is ignored where nobody handles it, faulthandler writes them into a pipe of the shim's.

It does so in C and without the GIL, however stuck Python is. A forked child (a loader process) answers in the same way.
"""

from __future__ import annotations

import os
import stat
import sys

from . import layout
from .wrapping import follow, quietly

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from .sheet import Sheet


def offer(sheet: Sheet, descriptor: int) -> bool:
    """Register the handler, unless the signal is somebody's already. True where a stack can be asked for now."""
    import _signal  # type: ignore[import-not-found]  # ruff: ignore[PLC0415] - `signal` has enums: a slow import
    import faulthandler  # ruff: ignore[PLC0415]

    if descriptor < 0 or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return False
    os.set_inheritable(descriptor, False)
    # Other threads' frames may be read only where the GIL keeps them from changing meanwhile.
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    if not has_gil or _signal.getsignal(_signal.SIGURG) != _signal.SIG_DFL:
        return False
    from . import alt_stack  # ruff: ignore[PLC0415] - needs ctypes, which some Pythons lack

    users = alt_stack.now()
    faulthandler.register(_signal.SIGURG, file=descriptor)
    handlers = alt_stack.now()
    try:
        alt_stack.put_back(users)
    except OSError:
        faulthandler.unregister(_signal.SIGURG)
        return False
    if users.is_off() and not handlers.is_off():
        # faulthandler does not set it up a second time: who enables it wants it for the overflow of the thread's own.
        follow(faulthandler, "enable", quietly(lambda *_: alt_stack.put_back(handlers)))
    sheet.flag(layout.ANSWERS)
    return True


def give_way(sheet: Sheet) -> dict[str, Callable[[ModuleType], None]]:
    """What to do when which module was imported, so that nobody asks any more once the training takes the signal for itself."""
    import _signal  # ruff: ignore[PLC0415]

    def taken(_result: object, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if (args[0] if args else keywords.get("signalnum", keywords.get("signum"))) == _signal.SIGURG:
            sheet.unflag(layout.ANSWERS)

    def at_faulthandler(module: ModuleType) -> None:
        for name in ("register", "unregister"):
            follow(module, name, quietly(taken))

    return {"signal": quietly(lambda module: follow(module, "signal", quietly(taken))), "faulthandler": quietly(at_faulthandler)}
