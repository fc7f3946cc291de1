"""F13: one rank loops for ever."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class Spins(AtCall):
    """Three lines of Python before an optimizer step: a core is busy, and nothing comes of it."""

    id = "F13"
    verdict = "hang"
    causes = ("spin",)
    expects = Expectation.RECOVERS
    suspect_s = 30.0
    at = "step"
    do = "count"
