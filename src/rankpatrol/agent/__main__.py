"""Entry: `python -m rankpatrol.agent RUNDIR`. Ends with the job; started again, it goes on."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from rankpatrol.agent.agent import Agent
from rankpatrol.agent.nodes.others import Alone, Others
from rankpatrol.agent.voice import Voice, stderr_voice
from rankpatrol.core.errors import PatrolError
from rankpatrol.journal import read_events
from rankpatrol.launch.outlived import retire
from rankpatrol.launch.rundir import Cluster, JobSpec, RunDir
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.process import identify

if TYPE_CHECKING:
    from rankpatrol.agent.nodes.follower import Follower

_ROUND_S = 1.0
# Close to the end of an attempt and of the job a second is long: the run directory is read more often than the ranks.
_GLANCE_S = 0.25
# A node finds a broker that is back within two or three seconds.
_ALL_BACK_S = 15.0


def main(path: Path) -> int:
    """Patrol one job to its end. Any error of a cycle is told, and no action is taken in that cycle."""
    run_dir = RunDir(path)
    spec = run_dir.read("job.json", JobSpec)
    if spec is None:
        return 1  # the job is over and its run directory gone
    voice, parent = stderr_voice(), os.getppid()
    stop = threading.Event()
    if (us := identify(os.getpid())) is not None:
        run_dir.write("agent.json", us)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if spec.cluster is None:
        _judge(spec, run_dir, voice, stop, Alone())
    elif spec.cluster.first:
        _host(spec, spec.cluster, run_dir, voice, stop)
    else:
        from rankpatrol.agent.nodes.follower import Follower  # ruff: ignore[PLC0415] - a job on one node needs no broker

        _follow(Follower(spec, spec.cluster, run_dir, SystemClock(), voice), voice, stop)
    voice.rest()
    if os.getppid() != parent:
        retire(run_dir)  # our parent was killed and cannot do it any more
    return 0


def _judge(spec: JobSpec, run_dir: RunDir, voice: Voice, stop: threading.Event, others: Others) -> None:
    agent = Agent(spec, run_dir, SystemClock(), voice, others)
    events = list(read_events(run_dir.spool))
    told = {kind: {event["attempt"] for event in events if event["kind"] == kind} for kind in ("attempt_started", "attempt_ended")}
    agent.adopt(told["attempt_started"], told["attempt_ended"])
    _patrol(agent, voice, stop)
    if stop.is_set():
        agent.leave()


def _host(spec: JobSpec, cluster: Cluster, run_dir: RunDir, voice: Voice, stop: threading.Event) -> None:
    """The first node's agent judges over all nodes."""
    from rankpatrol.agent.nodes.meeting import Hub  # ruff: ignore[PLC0415] - a job on one node needs no broker
    from rankpatrol.agent.nodes.remote import OtherNodes  # ruff: ignore[PLC0415] - the same

    clock = SystemClock()
    try:
        hub = Hub(spec, cluster, run_dir, clock)
    except PatrolError as problem:
        voice.say(f"the other nodes cannot be heard, so nothing is judged: {problem}. {problem.help}", "alert")
        _judge(spec, run_dir, voice, stop, Alone())
        return
    voice.say(f"the other nodes meet at {hub.address.url()}")
    try:
        others = OtherNodes(hub.exchange, cluster.node, run_dir.spool, clock)
        # Before an earlier agent's incident is taken up: half of a job is no ground to act on.
        if missed := others.wait_for_all(_ALL_BACK_S):
            voice.say(f"not heard since this agent began: {', '.join(missed)}", "alert")
        _judge(spec, run_dir, voice, stop, others)
    finally:
        hub.close()


def _follow(follower: "Follower", voice: Voice, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            if follower.finished():
                return
            voice.show(follower.round())
        except (PatrolError, OSError) as problem:
            with contextlib.suppress(OSError):
                voice.say(f"a round failed: {problem}", "alert")
        stop.wait(_GLANCE_S)


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
