"""F5: one rank sleeps for ever before a collective."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class SleepsBeforeCollective(AtCall):
    """The rank sleeps in the hooks of `Optimizer.step`; the others wait for it in the next backward pass."""

    id = "F5"
    verdict = "hang"
    causes = ("rank_blocked",)
    expects = Expectation.RECOVERS
    at = "step"
    do = "rest"
