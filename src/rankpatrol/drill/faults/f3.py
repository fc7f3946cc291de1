"""F3: one rank is killed, as the kernel does when memory runs out."""

import signal

from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.faults.signalled import RankSignalled


class Killed(RankSignalled):
    """SIGKILL; its loader processes live on for some seconds and hold its connections."""

    id = "F3"
    verdict = "crash"
    causes = ("sigkill", "host_oom_kill")
    expects = Expectation.CRASHES
    suspect_s = 3.0
    number = signal.SIGKILL
