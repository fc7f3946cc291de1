"""Whether a rank's Python answers: one of its threads that is none of Python's asks for the interpreter's lock."""

import time

from rankpatrol.collect.flight import ask, timed_out
from rankpatrol.core.records import Missing

# Both are torch's: the first needs nothing of Python, the second the interpreter's lock.
_WITHOUT_PYTHON, _WITH_PYTHON = "ping", "dump_traceback"


def gives_lock(socket_path: str, deadline_s: float) -> bool | Missing:
    """True where a thread got the interpreter's lock in time, False where the server answers and no thread gets it.

    Python code gives the lock up every 5 ms where somebody asks (sys.setswitchinterval); C code does when it is over, or chooses to.
    """
    until = time.monotonic() + deadline_s
    alive = ask(socket_path, _WITHOUT_PYTHON, until)
    if not isinstance(alive, bytes):
        return alive or Missing("the rank's worker server cannot be pinged")
    asked = ask(socket_path, _WITH_PYTHON, until)
    if timed_out(asked):
        return False
    return True if isinstance(asked, bytes) else asked or Missing("the rank's worker server has no traceback of Python's")
