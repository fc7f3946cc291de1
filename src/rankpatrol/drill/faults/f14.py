"""F14: one rank never comes back from C: it holds the interpreter's lock there, or waits for a lock that Python does not know."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class HoldsTheLock(AtCall):
    """A regular expression that backtracks for longer than anybody lives, before an optimizer step."""

    id = "F14-gil"
    verdict = "hang"
    causes: tuple[str, ...] = ("gil_held",)
    expects = Expectation.RECOVERS
    suspect_s = 30.0
    at = "step"
    do = "clean_text"


class LockedBelowPython(HoldsTheLock):
    """A mutex of the C library that its own thread has taken already."""

    id = "F14-below"
    causes = ("below_python",)
    do = "update_index"
