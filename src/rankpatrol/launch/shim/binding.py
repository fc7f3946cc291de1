"""Binds the rank before it starts, by its own GPU and within its own cpuset; what cannot be bound soundly starts as it would have."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Mapping

from rankpatrol.affinity import binder, kernel
from rankpatrol.affinity.cpus import format_cpus
from rankpatrol.affinity.plan import BIND, NOTHING, RankPlan, Want, describe, document
from rankpatrol.launch.shim.desk import Desk, write_once
from rankpatrol.launch.shim.output import say

ROOT = "/"


@contextlib.contextmanager
def bound(desk: Desk, environment: Mapping[str, str], launcher_pid: int) -> Iterator[None]:
    """What is started inside inherits the binding; the shim itself has its own back afterwards."""
    before = kernel.held()
    made = binder.decide(environment, Want(), launcher_pid, ROOT)
    if made.decision == BIND:
        made = _bind(made)
    _tell(desk, made)
    try:
        yield
    finally:
        if made.decision == BIND:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before.cpus)
            with contextlib.suppress(OSError):
                kernel.set_memory_policy(kernel.MPOL_DEFAULT, ())


def _bind(made: RankPlan) -> RankPlan:
    try:
        problem = kernel.bind(made.cpus, made.memory, made.memory_node)
    except OSError as refused:
        why = f"the kernel refuses CPUs {format_cpus(made.cpus)} ({refused.strerror})"
        return made._replace(decision="refused", code="kernel", why=why)
    return made if problem is None else made._replace(memory="none", memory_node=None, notes=(*made.notes, problem))


def _tell(desk: Desk, made: RankPlan) -> None:
    if made.decision != NOTHING:
        say(f"rank {desk.rank}: {'bound to ' if made.decision == BIND else ''}{describe(made)}")
        for note in made.notes:
            say(f"rank {desk.rank}: {note}")
    with contextlib.suppress(OSError):  # nobody waits for this word
        write_once(os.path.join(desk.run_dir, "bindings", f"{desk.attempt}.{desk.rank}.json"), document(made))
