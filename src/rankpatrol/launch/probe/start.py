"""Puts the probe in place, in the rank itself."""

from __future__ import annotations

import atexit
import contextlib
import os

from .hooks import Hooks
from .imports import Watcher
from .sheet import open_marks
from .stacks import give_way, offer
from .wrapping import quietly


def start(marks_fd: int, socket: str, stacks_fd: int) -> None:
    """Sign the sheet and wait for torch to be imported."""
    sheet = open_marks(marks_fd)
    if sheet is None:
        return
    hooks = Hooks(sheet, socket)
    os.register_at_fork(after_in_child=hooks.detach)
    atexit.register(quietly(hooks.note_exception))
    wanted = hooks.wanted()
    with contextlib.suppress(Exception):  # marks and stacks do not depend on each other
        if offer(sheet, stacks_fd):
            wanted.update(give_way(sheet))
    Watcher(wanted).start()
    sheet.sign()
