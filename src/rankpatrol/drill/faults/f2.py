"""F2: one rank dies of a signal of its own making."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class SegmentationFault(AtCall):
    """SIGSEGV in the forward pass."""

    id = "F2-segv"
    verdict = "crash"
    causes = ("sigsegv",)
    expects = Expectation.CRASHES
    suspect_s = 3.0
    at = "forward"
    do = "read_nowhere"


class Aborts(SegmentationFault):
    """SIGABRT in the forward pass."""

    id = "F2-abrt"
    causes = ("sigabrt",)
    do = "abort"
