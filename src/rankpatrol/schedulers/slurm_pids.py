"""Which processes of this node belong to a Slurm job: its cgroups say so, else the local slurmd, else their environment."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rankpatrol.core.jobs import JobProcess
from rankpatrol.core.records import Missing
from rankpatrol.system.process import identify, stat_fields

# v1: /slurm/uid_U/job_J/step_S (a multiple-slurmd build: /slurm_NODE/…); v2: /system.slice/[NODE_]slurmstepd.scope/job_J/step_S/… (Slurm's
# cgroup_v2 page). Both from the root on: a user may well own a cgroup of such a name further down.
_CGROUP = re.compile(
    r"/(?:slurm(?:_[^/]+)?/uid_\d+|system\.slice/(?:[^/]+_)?slurmstepd\.scope)/job_(?P<job>\d+)/step_(?P<step>[^/]+)(?:/.*)?", re.ASCII
)
_MOST_ENVIRON_BYTES = 1 << 18


def processes_of(job: str, listpids: Callable[[], str | Missing]) -> tuple[JobProcess, ...] | Missing:
    """The job's processes here; Missing where nobody knows any. `listpids`: that command's output.

    Cgroups know all of them. Where there are none (proctrack/linuxproc), the local slurmd loses sight of a process whose parent has died:
    those are known by their environment alone.
    """
    if found := tuple(_by_cgroup(job)):
        return found
    told = listpids()
    listed_ones = () if isinstance(told, Missing) else tuple(_by_listpids(job, told))
    known = {each.process for each in listed_ones}
    if found := (*listed_ones, *(each for each in _by_environ(job) if each.process not in known)):
        return found
    return Missing(
        f"no process of the job is seen on this node ({told.reason if isinstance(told, Missing) else 'nor listed by its slurmd'})"
    )


def is_inside(job: str) -> bool:
    """True where this very process is a part of the job: by its cgroup, else by what it was started with."""
    where = step_of(_text(os.getpid(), "cgroup"))
    return where[0] == job if where is not None else os.environ.get("SLURM_JOB_ID") == job


def step_of(cgroups: str) -> tuple[str, str] | None:
    """Job and step by the text of /proc/PID/cgroup, or None where it is in no cgroup of Slurm's."""
    for line in cgroups.splitlines():
        if (seen := _CGROUP.fullmatch(line.split(":", 2)[-1])) is not None:
            return seen["job"], seen["step"]
    return None


def listed(text: str) -> Iterator[tuple[int, str, str, int | None]]:
    """The rows of `scontrol listpids`: pid, job, step, and the task's global rank, which its children lack."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 5 and words[0].isdecimal():
            yield int(words[0]), words[1], words[2], int(words[4]) if words[4].isdecimal() else None


def _by_cgroup(job: str) -> Iterator[JobProcess]:
    for pid in _pids():
        where = step_of(_text(pid, "cgroup"))
        if where is not None and where[0] == job and (process := identify(pid)) is not None:
            yield JobProcess(process=process, step=where[1], told_by="cgroup", node=_node(pid))


def _by_listpids(job: str, told: str) -> Iterator[JobProcess]:
    for pid, its_job, step, rank in listed(told):
        if its_job == job and (process := identify(pid)) is not None:
            yield JobProcess(process=process, step=step, told_by="listpids", rank=rank if step.isdecimal() else None, node=_node(pid))


def _by_environ(job: str) -> Iterator[JobProcess]:
    """Of a numbered step only: the batch script and srun itself wear a task's variables too, and a submit shell leaks an outer job's."""
    for pid in _pids():
        values = _variables(pid)
        step = values.get("SLURM_STEP_ID", "")
        if values.get("SLURM_JOB_ID") == job and step.isdecimal() and (process := identify(pid)) is not None:
            yield JobProcess(process=process, step=step, told_by="environ", node=values.get("SLURMD_NODENAME"))


def _node(pid: int) -> str | None:
    """Slurm's name of the node, which need not be the host's."""
    return _variables(pid).get("SLURMD_NODENAME")


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # ruff: ignore[PTH208] - thousands of names


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _variables(pid: int) -> dict[str, str]:
    """Its environment lies in the process's own memory: whoever reads that of one in D state could hang as well."""
    stat = _text(pid, "stat")
    if not stat or stat_fields(stat)[0] in "DZX":
        return {}
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as environ:
            pairs = environ.read(_MOST_ENVIRON_BYTES).split(b"\0")
    except OSError:
        return {}
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in (pair.partition(b"=") for pair in pairs)}
