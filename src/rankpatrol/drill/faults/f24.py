"""F24: the loss becomes no number, and the training goes on."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class LossOverflows(AtCall):
    """All weights of all ranks become NaN before an optimizer step; the next line of the log shows it."""

    id = "F24"
    verdict = "healthy"
    causes = ("loss_nan",)
    expects = Expectation.ALERTED
    at = "step"
    do = "overflow"
    everyone = True
    suspect_s = 3.0
