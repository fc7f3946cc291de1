"""F1: one rank raises in its forward pass."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class RaisesInForward(AtCall):
    """A hook of the model raises; torchrun tells the others to end, which makes them collateral."""

    id = "F1"
    verdict = "crash"
    causes = ("user_exception",)
    expects = Expectation.CRASHES
    suspect_s = 3.0
    in_log_tail = "ValueError: expected an input of 64 features, got 63"
    at = "forward"
    do = "check"
