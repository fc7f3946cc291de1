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
    return named if not jobs or f"job_{job}" in jobs else host


def _cgroups() -> str:
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as told:
            return told.read()
    except OSError:
        return ""
