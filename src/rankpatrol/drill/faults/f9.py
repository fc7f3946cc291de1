"""F9: one rank runs another collective than the others, or the same one with other sizes."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class OtherCollective(AtCall):
    """At one line all ranks run an all-reduce, and one of them a broadcast."""

    id = "F9-op"
    verdict = "hang"
    causes = ("collective_mismatch_op",)
    expects = Expectation.RECOVERS
    at = "step"
    do = "reduce_or_broadcast"
    everyone = True


class OtherSize(AtCall):
    """All ranks run one more all-reduce, and one of them brings fewer numbers: gloo takes that for a broken message and aborts."""

    id = "F9-shape"
    verdict = "crash"
    causes = ("collective_mismatch_shape",)
    expects = Expectation.CRASHES
    at = "step"
    do = "reduce_own_size"
    everyone = True
