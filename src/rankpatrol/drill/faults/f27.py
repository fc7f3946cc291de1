"""F27: a collective under a condition: one rank alone runs it."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class ConditionalCollective(AtCall):
    """One barrier more on the drawn rank; the others are not to blame for staying away from it."""

    id = "F27"
    verdict = "hang"
    causes = ("rank_conditional_collective",)
    expects = Expectation.RECOVERS
    names_nobody = True
    at = "step"
    do = "meet"
