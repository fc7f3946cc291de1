"""Who may act on which job: one lease a job, for `run`'s agent, the node's, and people alike."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rankpatrol.launch.rundir import RunDir
from rankpatrol.system.clock import Clock
from rankpatrol.system.lease import Lease, LeaseTaken, take_lease
from rankpatrol.system.state_dir import state_dir

# SIGTERM, KillWait and the epilogs may take minutes, and the checkpoint is read after them.
LEASE_S = 900.0


def local_lease(run_dir: RunDir) -> Path:
    """Of a job of `rankpatrol run`: it goes with the job."""
    return run_dir.path / "lease"


def slurm_lease(job: str) -> Path:
    """Of a cluster's job: in RANKPATROL_LEASES, else the user's state directory, which nodes share where homes do."""
    return _leases() / f"slurm-{job}"


def kubernetes_lease(job: str) -> Path:
    """The same of a job of Kubernetes; no namespace and no kind holds a dot, so no two jobs share one."""
    return _leases() / job.replace(":", ".").replace("/", ".")


def _leases() -> Path:
    if chosen := os.environ.get("RANKPATROL_LEASES"):
        return Path(chosen)
    return state_dir() / "leases"


@contextlib.contextmanager
def leased(folder: Path, who: str, clock: Clock, make_room: Callable[[], bool] = lambda: False) -> Iterator[Lease]:
    """Hold the lease of this folder; where its disk is full, `make_room` may have some. Raises LeaseTaken."""
    try:
        lease = take_lease(folder, who, clock, lasts_s=LEASE_S)
    except LeaseTaken as problem:
        full = isinstance(problem.__cause__, OSError) and problem.__cause__.errno in {errno.ENOSPC, errno.EDQUOT}
        if not (full and make_room()):
            raise
        lease = take_lease(folder, who, clock, lasts_s=LEASE_S)
    try:
        yield lease
    finally:
        with contextlib.suppress(OSError):  # the run directory goes with its job
            lease.give_back()
