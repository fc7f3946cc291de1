"""The stack on which this thread's signal handlers run (sigaltstack(2)).

faulthandler sets one up that holds hardly more than one handler's frame, and Python's own handlers then run on it as well (SA_ONSTACK):
where several signals come at once it overflows, and the rank dies of that. So the thread gets back what it had.
"""

from __future__ import annotations

import ctypes

SS_DISABLE = 2


class AltStack(ctypes.Structure):
    """stack_t of the C library."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))

    def is_off(self) -> bool:
        """No such stack: handlers run on the thread's own."""
        return bool(self.ss_flags & SS_DISABLE)


_libc = ctypes.CDLL(None, use_errno=True)


def now() -> AltStack:
    """The one that is set up. Raises OSError."""
    seen = AltStack()
    _ask(None, ctypes.byref(seen))
    return seen


def put_back(stack: AltStack) -> None:
    """Set this one up. Raises OSError."""
    _ask(ctypes.byref(stack), None)


def _ask(new: object, old: object) -> None:
    if _libc.sigaltstack(new, old) != 0:
        raise OSError(ctypes.get_errno(), "sigaltstack")
