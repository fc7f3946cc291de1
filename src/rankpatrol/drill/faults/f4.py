"""F4: one rank leaves in mid-run, and says that all is well."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class LeavesEarly(AtCall):
    """`os._exit(0)` before an optimizer step: to torchrun this rank has succeeded."""

    id = "F4"
    verdict = "crash"
    causes = ("left_early",)
    expects = Expectation.CRASHES
    suspect_s = 10.0
    at = "step"
    do = "leave"
