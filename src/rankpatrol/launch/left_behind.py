"""Ranks that outlive CMD though the user has ordered the end: their shims end them, and `run` waits for that. Nobody is signalled here."""

import contextlib
import os
import signal
import time
from collections.abc import Collection

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.launch.rundir import OrderedEnd, RunDir
from rankpatrol.system.process import identify

# SIGTERM asks for an end; so does Ctrl-C the second time. A hang-up does not: nohup is for those who want to go on.
FOR_GOOD = "ending_for_good.json"
# A shim waits 10 s, sends SIGTERM, and SIGKILL 25 s later (launch/shim/deadlines.py); a launcher may try its restarts in vain.
MOST_S, _LAUNCHERS_S = 60.0, 15.0
_POLL_S = 0.5


class _Opening(Record, frozen=True):
    """By whom an attempt was started, as its first shim saw it."""

    launcher_pid: int
    launcher_start_ticks: int | None


def note_order(run_dir: RunDir, number: signal.Signals, interrupts: int) -> None:
    """Write an ending signal down: the first is what the job ended by; SIGTERM and a second Ctrl-C mean all of it."""
    ordered = OrderedEnd(signal=number.name, at_unix_s=time.time())
    with contextlib.suppress(OSError):
        run_dir.write_first("ending.json", ordered)
        if number == signal.SIGTERM or interrupts > 1:
            run_dir.write_first(FOR_GOOD, ordered)


def await_ranks(run_dir: RunDir, ending: Collection[signal.Signals]) -> None:
    """Wait for what is left of the ranks, and for launchers that could start them again; an ending signal ends the wait."""
    if run_dir.read(FOR_GOOD, OrderedEnd) is None:
        return
    while signal.sigtimedwait(ending, 0) is not None:
        pass  # meant for CMD, which has ended
    until = time.monotonic() + MOST_S
    ranks = _ranks(run_dir)
    if ranks:
        _say(f"the command has ended, and {len(ranks)} of its ranks have not: their shims end them after 10 s (Ctrl-C: do not wait for it)")
    while ranks and time.monotonic() < until:
        if signal.sigtimedwait(ending, _POLL_S) is not None:
            return
        ranks = _ranks(run_dir)
    if ranks:
        _say(f"these ranks are still there, and nobody can end them: processes {', '.join(map(str, ranks))}")
    until = time.monotonic() + _LAUNCHERS_S
    while _launchers(run_dir) and time.monotonic() < until and signal.sigtimedwait(ending, _POLL_S) is None:
        pass


def _ranks(run_dir: RunDir) -> list[int]:
    """The pids of ranks that registered in this run and still run."""
    return [
        place.pid
        for place in run_dir.places()
        if run_dir.exit_of(place) is None and (seen := identify(place.pid)) is not None and seen.start_ticks == place.start_ticks
    ]


def _launchers(run_dir: RunDir) -> list[int]:
    """Whoever started ranks of this run and still runs; not we ourselves."""
    found = set()
    for path in (run_dir.path / "openings").glob("*.json"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            opening = msgspec.json.decode(path.read_bytes(), type=_Opening)
            seen = identify(opening.launcher_pid)
            if seen is not None and seen.start_ticks == opening.launcher_start_ticks and seen.pid not in {1, os.getpid()}:
                found.add(seen.pid)
    return sorted(found)


def _say(what: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"rankpatrol: {what}\n".encode())
