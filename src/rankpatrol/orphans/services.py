"""Who holds GPUs for everybody: an allow-list by unit, program and user, and the programs of NVIDIA's MPS. Pure."""

import fnmatch
from typing import NamedTuple

from rankpatrol.core.records import Missing
from rankpatrol.orphans.records import HomeKind, ProcessSeen


class Service(NamedTuple):
    """One row. `unit` and `exe` are patterns; `uids` None stands for any. A name alone is never enough: anybody can take one."""

    unit: str
    exe: str
    uids: frozenset[int] | None = frozenset({0})


_SYSTEM = frozenset(range(1000))

SERVICES = (
    Service("nvidia-persistenced.service", "*/nvidia-persistenced", _SYSTEM),
    Service("nvidia-fabricmanager.service", "*/nv-fabricmanager"),
    Service("nvidia-imex.service", "*/nvidia-imex"),
    Service("nvidia-powerd.service", "*/nvidia-powerd"),
    Service("nvidia-dcgm.service", "*/nv-hostengine"),
    Service("dcgm.service", "*/nv-hostengine"),
    Service("dcgm-exporter.service", "*/dcgm-exporter", None),
    Service("gpud.service", "*/gpud"),
    Service("gdm*.service", "*/Xorg", _SYSTEM),
    Service("display-manager.service", "*/Xorg", _SYSTEM),
    Service("slurmd.service", "*/slurmd"),
)

# The server owns its clients' contexts: a client that is ended with work in flight can break the others (NVIDIA's MPS guide, 2.2).
MPS_NAMES = ("nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "nvidia-cuda-mps")
_COMM_LENGTH = 15  # TASK_COMM_LEN of the kernel, less its zero


def listed_service(process: ProcessSeen) -> Service | None:
    """The row that this process fits in unit, program and user, or None."""
    home, exe = process.home, process.exe
    if isinstance(home, Missing) or isinstance(exe, Missing) or home.kind is not HomeKind.SERVICE:
        return None
    for row in SERVICES:
        of_user = row.uids is None or process.uid in row.uids
        if of_user and fnmatch.fnmatchcase(home.id, row.unit) and fnmatch.fnmatchcase(exe, row.exe):
            return row
    return None


def is_mps_server(process: ProcessSeen) -> bool:
    """True by name or by program: to be spared, either is enough."""
    program = "" if isinstance(process.exe, Missing) else process.exe.removesuffix(" (deleted)").rpartition("/")[2]
    return program in MPS_NAMES or process.name in {name[:_COMM_LENGTH] for name in MPS_NAMES}
