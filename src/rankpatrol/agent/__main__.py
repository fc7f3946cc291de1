"""Entry: `python -m rankpatrol.agent RUNDIR`. Ends with the job; started again, it goes on."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from rankpatrol.agent.agent import Agent
from rankpatrol.agent.voice import Voice, stderr_voice
from rankpatrol.core.errors import PatrolError
from rankpatrol.journal import read_events
from rankpatrol.launch.outlived import retire
from rankpatrol.launch.rundir import JobSpec, RunDir
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.process import identify

_ROUND_S = 1.0
# Close to the end of an attempt and of the job a second is long: the run directory is read more often than the ranks.
_GLANCE_S = 0.25


def main(path: Path) -> int:
    """Patrol one job to its end. Any error of a cycle is told, and no action is taken in that cycle."""
    run_dir = RunDir(path)
    spec = run_dir.read("job.json", JobSpec)
    if spec is None:
        return 1  # the job is over and its run directory gone
    voice = stderr_voice()
    agent = Agent(spec, run_dir, SystemClock(), voice)
    stop = threading.Event()
    if (us := identify(os.getpid())) is not None:
        run_dir.write("agent.json", us)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    events = list(read_events(run_dir.spool))
    told = {kind: {event["attempt"] for event in events if event["kind"] == kind} for kind in ("attempt_started", "attempt_ended")}
    agent.adopt(told["attempt_started"], told["attempt_ended"])
    parent = os.getppid()
    _patrol(agent, voice, stop)
    voice.rest()
    if os.getppid() != parent:
        retire(run_dir)  # our parent was killed and cannot do it any more
    return 0


def _patrol(agent: Agent, voice: Voice, stop: threading.Event) -> None:
    waited_s = _ROUND_S
    while not stop.is_set():
        try:
            agent.glance()
            if agent.finished():
                return
            if waited_s >= _ROUND_S:
                waited_s = 0.0
                voice.show(agent.cycle(), "alert" if agent.desk.open_incident() else "dim")
        except (PatrolError, OSError) as problem:
            with contextlib.suppress(OSError):
                voice.say(f"a round failed, no action was taken: {problem}", "alert")
        stop.wait(_GLANCE_S)
        waited_s += _GLANCE_S


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
