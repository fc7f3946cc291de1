"""F18: all ranks do more in each step: nobody is to blame."""

from rankpatrol.drill.faults.f17 import HalfAsSlowAgain
from rankpatrol.drill.faults.port import Expectation


class AllSlower(HalfAsSlowAgain):
    """Every rank sleeps before each of its optimizer steps."""

    id = "F18"
    causes = ("straggler_unattributable",)
    expects = Expectation.SLOWED
    everyone = True
    lasts_s = 0.4
    times = 220
    steps = 380
    suspect_s = 180.0
