"""Tests begin as in a terminal, however the run was started: a background shell ignores SIGINT and SIGQUIT, nohup SIGHUP.

They leave nothing in the memory of nodes of whoever runs them.
"""

import os
import signal

os.environ["RANKPATROL_LEMONS"] = ""

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
