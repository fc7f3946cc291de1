"""Gives the agent's state to whoever wants metrics: on a port, in a file, or to nobody. Nothing here makes the agent wait."""

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rankpatrol import __version__
from rankpatrol.agent.teller import Teller
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.launch.shim.naming import node_name
from rankpatrol.metrics.records import AgentNow, Reading
from rankpatrol.system.clock import Clock

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MetricsPost(Protocol):
    """What the agent tells of itself."""

    def adopt(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Count what an earlier agent told."""
        ...

    def publish(self, state: bytes) -> None:
        """The state.json of this round."""
        ...

    def farewell(self) -> None:
        """The job is over, and all is published."""
        ...

    def leave(self) -> None:
        """The job goes on without this agent."""
        ...


class Keeper(MetricsPost, Protocol):
    """One that can be asked."""

    def latest(self) -> tuple[Reading, ...]:
        """The reading of the last round, or nothing before the first."""
        ...


class NoMetrics:
    """Nobody asked for metrics."""

    def adopt(self, events: Iterable[Mapping[str, Any]]) -> None:
        pass

    def publish(self, state: bytes) -> None:
        pass

    def farewell(self) -> None:
        pass

    def leave(self) -> None:
        pass


def post_of(spec: JobSpec, teller: Teller, clock: Clock) -> MetricsPost:
    """The post that this job was started with; what it needs is loaded only where it was asked for."""
    if not (spec.metrics or spec.metrics_textfile):
        return NoMetrics()
    post: MetricsPost = importlib.import_module("rankpatrol.agent.posting").Post(spec, teller, clock)
    return post


def keeper_of(spec: JobSpec, teller: Teller, clock: Clock) -> "Keeper":
    """A post that serves nothing itself: whoever holds many jobs' serves them all."""
    keeper: Keeper = importlib.import_module("rankpatrol.agent.posting").Post(spec, teller, clock)
    return keeper


def agent_now(spec: JobSpec, teller: Teller) -> AgentNow:
    """This process, and what it has not delivered yet."""
    spent = os.times()
    return AgentNow(
        node=node_name(),
        version=__version__,
        cpu_s=round(spent.user + spent.system + spent.children_user + spent.children_system, 2),
        resident_bytes=_resident_bytes(),
        backlog_records=teller.journal.backlog(),
        # Whoever watches from outside may sit in another job of Slurm's.
        scheduler_job="" if spec.attached else os.environ.get("SLURM_JOB_ID", ""),
    )


def _resident_bytes() -> int:
    """proc_pid_statm(5)."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
