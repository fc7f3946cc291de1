"""N8: every rank pauses for some seconds, as under a garbage collection or swapping."""

from rankpatrol.drill.faults.n2 import SilentEvaluation
from rankpatrol.drill.faults.port import Expectation


class Pause(SilentEvaluation):
    """Eight seconds in which nobody does anything; no longer than that, so it counts as no silence, but nothing may be done."""

    id = "N8"
    do = "pause"
    expects = Expectation.ENDS_WELL
    lasts_s = 8.0
