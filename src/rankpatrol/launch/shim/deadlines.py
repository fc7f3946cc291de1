"""How long the shim waits, and for what; and how long its launcher would, by the launcher's own words."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional, Sequence

from rankpatrol.launch.shim.desk import PAUSE_MOST_S, RESUME_WAIT_S
from rankpatrol.launch.shim.output import DRAIN_S
from rankpatrol.launch.shim.torchrun_flags import read_flags, torchruns_words

_SHUTDOWN = "--shutdown-timeout"
# A flag that is left out is looked up in its variable (torch/distributed/argparse_util.py), then in torch's own (launcher/api.py).
_VARIABLES = ("PET_SHUTDOWN_TIMEOUT", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
# Of the launcher's patience so much is left for what comes after the rank's own end: its descendants', and its last words.
_LEFT_S = 5.0


class Deadlines(NamedTuple):
    """All in seconds. torchrun kills a rank 30 s after its signal (PContext.close) unless it is told otherwise: we are done before that."""

    term_after_int_s: float = 20.0
    kill_s: float = 25.0
    descendants_s: float = 1.0  # between their SIGTERM and their SIGKILL
    loaders_leave_s: float = 6.0  # torch's loaders look every 5 s whether their rank is still there (MP_STATUS_CHECK_INTERVAL)
    hold_s: float = 20.0  # a failed rank's exit, while the evidence of the others is taken
    hold_alone_s: float = 5.0  # the same without an agent: a new one starts within a second
    settle_s: float = 0.3  # for a rank's last words to reach its log
    left_behind_s: float = 10.0  # for a rank whose job was told to end and whose CMD has gone, to go by itself
    lost_launcher_kill_s: float = 2.0  # a rank whose launcher is gone is nobody's: all of it is gone within 5 s
    resume_s: float = RESUME_WAIT_S
    pause_s: float = PAUSE_MOST_S
    drain_s: float = DRAIN_S


DEADLINES = Deadlines()


def as_patient_as(deadlines: Deadlines, shutdown_s: Optional[float]) -> Deadlines:
    """The deadlines of an end, where the launcher kills a rank so long after its signal: a rank keeps the time that its user gives it.

    A launcher that says nothing has torchrun's 30 s.
    """
    if shutdown_s is None:
        return deadlines
    kill_s = max(shutdown_s - _LEFT_S, shutdown_s / 2)
    return deadlines._replace(kill_s=kill_s, term_after_int_s=kill_s * 0.8, descendants_s=min(deadlines.descendants_s, shutdown_s / 10))


def shutdown_timeout_s(launcher: Sequence[str], environment: Mapping[str, str]) -> Optional[float]:
    """What torchrun (2.12 and later) was told to wait between a rank's signal and its SIGKILL; None where it was told nothing."""
    flags, _ = read_flags(torchruns_words(launcher) or ())
    told = [flags.get(_SHUTDOWN), *(environment.get(name) for name in _VARIABLES)]
    given = next((each for each in told if each), None)
    try:
        return None if given is None else max(0.0, float(given))
    except ValueError:
        return None  # torchrun would not have started
