"""What this node is called: by Slurm where it started us, since a scheduler is told nodes by its own names, else by the host itself."""

from __future__ import annotations

import os
from typing import Mapping


def node_name() -> str:
    """This node's name, for whoever started this process."""
    return named_by(os.environ, os.uname().nodename, _cgroups())


def named_by(environment: Mapping[str, str], host: str, cgroups: str) -> str:
    """Slurm's name of the node (SLURMD_NODENAME), unless the cgroups say that those variables came with us from another job. Pure."""
    job, named = environment.get("SLURM_JOB_ID"), environment.get("SLURMD_NODENAME")
    if not job or not named:
        return host
    jobs = {part for line in cgroups.splitlines() if "/slurm" in line for part in line.split("/") if part.startswith("job_")}
    # The tasks of all components of a heterogeneous job bear its first one's id, and their cgroups each its own.
    ours = {f"job_{number}" for name, number in environment.items() if name == "SLURM_JOB_ID" or name.startswith("SLURM_JOB_ID_HET_GROUP_")}
    return named if not jobs or jobs & ours else host


def _cgroups() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as told:
            return told.read()
    except OSError:
        return ""
