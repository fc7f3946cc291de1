"""N7: heartbeat lines keep coming from a rank that sleeps for ever: they are no progress."""

from rankpatrol.drill.faults.f5 import SleepsBeforeCollective


class SleepsTalking(SleepsBeforeCollective):
    """F5 with a thread that prints a line each second."""

    id = "N7"
    do = "rest_talking"
