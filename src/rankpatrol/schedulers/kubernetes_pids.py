"""Which processes of this node belong to a pod: their cgroups say so, by the pod's uid and the container's id."""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from rankpatrol.core.jobs import JobProcess
from rankpatrol.core.records import Missing, Record
from rankpatrol.schedulers.kubernetes_json import Pod
from rankpatrol.schedulers.kubernetes_state import nodes_of
from rankpatrol.schedulers.kubernetes_words import is_name
from rankpatrol.system.process import identify

# The kubelet's two cgroup drivers. cgroupfs: …/kubepods[/burstable|/besteffort]/pod<UID>/[crio-]<container>; systemd:
# …/kubepods-burstable-pod<UID with _>.slice/cri-containerd-<container>.scope, and so for crio- and docker-. Static pods have 32 digits.
_UID = r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_CONTAINER = r"(?:[a-z-]+-)?(?P<container>[0-9a-f]{64})(?:\.scope)?"
_IN_POD = re.compile(rf"/(?:[a-z-]*kubepods[^/]*-)?pod{_UID}(?:\.slice)?/{_CONTAINER}(?:/.*)?", re.ASCII)
# As seen from a pod's own cgroup namespace: the container's own root, or another container of the same pod.
_OWN = re.compile(rf"/(?:\.\./{_CONTAINER}(?:/.*)?)?", re.ASCII)
# What a user's own systemd may delegate to a user: anybody can make a folder there that is named like a pod's.
_DELEGATED = re.compile(r"/user\.slice/")
POD_UID = "RANKPATROL_POD_UID"


class Place(Record, frozen=True):
    """Where a process is: in this container of this pod."""

    pod_uid: str
    container: str


def place_of(cgroups: str) -> Place | None:
    """Pod and container by the text of /proc/PID/cgroup, or None where it is in none, or its hierarchies name two."""
    found = set()
    for line in cgroups.splitlines():
        path = line.split(":", 2)[-1]
        if not _DELEGATED.search(path) and (seen := _IN_POD.search(path)) is not None and seen.end() == len(path):
            found.add(Place(seen["uid"].replace("_", "-"), seen["container"]))
    return found.pop() if len(found) == 1 else None


def processes_of(pods: tuple[Pod, ...], inside: Pod | None) -> tuple[JobProcess, ...] | Missing:
    """Their processes on this node. `inside`: the pod that we are in, where it is one of them.

    Within a pod the cgroup namespace hides the pod's name, and the pid namespace all processes but the pod's own.
    """
    known = {(pod.metadata.uid, container): pod for pod in pods for container in containers_of(pod)}
    own_pids = inside is not None and _is_own(_text("self"))
    found = []
    for pid in _pids():
        cgroups = _text(pid)
        place = place_of(cgroups)
        pod = known.get((place.pod_uid, place.container)) if place is not None else None
        if pod is None and place is None and own_pids and _is_own(cgroups):
            pod = inside
        if pod is not None and (process := identify(pid)) is not None:
            node = pod.spec.node_name
            named = node if node and is_name(node) else None
            found.append(JobProcess(process=process, step=pod.metadata.name, told_by="cgroup", node=named))
    return tuple(found) or Missing(f"no process of its pods is seen here; they are on {_where(pods)}")


def containers_of(pod: Pod) -> tuple[str, ...]:
    """The ids of its containers, without the runtime's name before them (containerd://…)."""
    told = (status.container_id for status in pod.status.container_statuses or ())
    return tuple(name.rpartition("/")[2] for name in told if name)


def pod_around_us(pods: tuple[Pod, ...], namespace: str, environment: Mapping[str, str] | None = None) -> Pod | None:
    """The one of these pods that this very process runs in: by the uid that the manifest gave us, by our cgroup, else by host name."""
    values = os.environ if environment is None else environment
    here = place_of(_text("self"))
    told = values.get(POD_UID) or (here.pod_uid if here is not None else "")
    if told:
        return next((pod for pod in pods if pod.metadata.uid == told), None)
    if not namespace:
        return None
    name = socket.gethostname()
    return next((pod for pod in pods if pod.metadata.namespace == namespace and name in {pod.metadata.name, pod.spec.hostname}), None)


def _is_own(cgroups: str) -> bool:
    """True where all its paths are of the pod that looks."""
    paths = [line.split(":", 2)[-1] for line in cgroups.splitlines()]
    return bool(paths) and all(_OWN.fullmatch(path) for path in paths)


def _where(pods: tuple[Pod, ...]) -> str:
    return ", ".join(nodes_of(pods)[:16]) or "nodes that are not known"


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())  # ruff: ignore[PTH208] - thousands of names


def _text(pid: int | str) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return ""
