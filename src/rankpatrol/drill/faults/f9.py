"""F9: one rank runs another collective than the others, or the same one with other sizes."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.f8 import SkipsACollective
from rankpatrol.drill.faults.port import Expectation


class OtherCollective(SkipsACollective):
    """Instead of the barrier after the second checkpoint the rank runs an all-reduce."""

    id = "F9-op"
    causes = ("collective_mismatch_op",)
    do = "reduce_instead"


class OtherSize(AtCall):
    """All ranks run one more all-reduce, and one of them brings fewer numbers: gloo takes that for a broken message and aborts."""

    id = "F9-shape"
    verdict = "crash"
    causes = ("collective_mismatch_shape", "collective_mismatch_op")
    expects = Expectation.CRASHES
    at = "step"
    do = "reduce_own_size"
    everyone = True
