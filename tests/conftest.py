"""Tests begin as in a terminal, however the run was started: a background shell ignores SIGINT and SIGQUIT, nohup SIGHUP.

They leave nothing in the memory of nodes of whoever runs them. How long an example takes on a busy machine says nothing about it.
With FIXED_EXAMPLES (.ci/run) property tests take the same examples each time, and fewer: whether a change lands is no matter of luck.
"""

import os
import signal

from hypothesis import HealthCheck, settings

FIXED = "FIXED_EXAMPLES" in os.environ
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=FIXED,
    max_examples=25 if FIXED else 100,
)
settings.load_profile("any machine")

os.environ["RANKPATROL_LEMONS"] = ""

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
