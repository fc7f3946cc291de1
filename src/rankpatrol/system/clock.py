"""The clock as a port, so that tests move time instead of waiting for it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time to measure with, UTC to show."""

    def mono_s(self) -> float: ...
    def unix_s(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME goes on while the machine is suspended, and no one can set it."""

    def mono_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def unix_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
