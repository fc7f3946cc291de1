"""F11: one rank is stopped by SIGSTOP."""

import signal

from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.faults.signalled import RankSignalled


class Stopped(RankSignalled):
    """The rank alone is stopped, not its parent nor its loader processes; nobody ever continues it."""

    id = "F11"
    verdict = "hang"
    causes = ("rank_stopped",)
    expects = Expectation.RECOVERS
    number = signal.SIGSTOP
