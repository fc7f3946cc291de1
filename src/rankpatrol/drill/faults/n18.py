"""N18: the process group's own time-out is shorter than patience, and ends the attempt before there is a verdict."""

from rankpatrol.drill.faults.at_call import AtCall
from rankpatrol.drill.faults.port import Expectation


class TimeOutBeforePatience(AtCall):
    """One rank sleeps for ever; the script gave its group 12 s."""

    id = "N18"
    verdict = "crash"
    causes = ("rank_blocked", "timeout_too_short")
    expects = Expectation.TIMES_OUT
    at = "step"
    do = "rest"
    timeout_s = 12.0

    def more(self) -> dict[str, object]:
        return {"group_timeout_s": self.timeout_s}
