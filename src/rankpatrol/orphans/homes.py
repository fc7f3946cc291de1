"""Whose a process is, from its cgroup: one row a runtime. Pure."""

import re
from collections.abc import Callable, Iterator

from rankpatrol.core.records import Missing
from rankpatrol.orphans.records import Home, HomeKind

_HEX = r"[0-9a-f]{12,64}"

# The first kind that any of a process's paths shows, in this order: a job inside a container's slice is still that job.
_ROWS: tuple[tuple[HomeKind, "re.Pattern[str]", Callable[["re.Match[str]"], str]], ...] = (
    # v1 slurm[_NODE]/uid_U/job_J/step_S, v2 [NODE_]slurmstepd.scope/job_J/step_S (Slurm's cgroups.html and cgroup_v2.html).
    (HomeKind.JOB, re.compile(r"/(?:slurm(?:_[^/]+)?/uid_\d+|[^/]*slurmstepd\.scope)/job_(\d+)(?=/|$)"), lambda found: found[1]),
    # The kubelet's two cgroup drivers write a pod's uid with dashes or with underscores; kind has them below a slice of the kubelet's own.
    (
        HomeKind.POD,
        re.compile(r"/(?:[a-z-]*kubepods[^/]*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=/|$)"),
        lambda found: found[1].replace("_", "-"),
    ),
    (
        HomeKind.CONTAINER,
        re.compile(rf"(?:docker|libpod|crio|cri-containerd|nerdctl)[-/]({_HEX})(?:\.scope)?(?=/|$)"),
        lambda found: found[1],
    ),
    (HomeKind.CONTAINER, re.compile(r"/lxc(?:\.payload)?[./]([^/]+)"), lambda found: found[1]),
    # A user's manager and login scopes: ssh, tmux-spawn-*.scope, notebooks started by `systemd --user`.
    (HomeKind.SESSION, re.compile(r"/user\.slice/user-\d+\.slice/(.+)$"), lambda found: found[1].rsplit("/", 1)[-1]),
    (HomeKind.SESSION, re.compile(r"/(user\.slice)$"), lambda found: found[1]),
    # Jobs of a person, although systemd calls them services.
    (HomeKind.SESSION, re.compile(r"/system\.slice/((?:cron|crond|atd|anacron)\.service)(?=/|$)"), lambda found: found[1]),
    (HomeKind.SERVICE, re.compile(r"/([^/]+\.service)(?=/|$)"), lambda found: found[1]),
    (HomeKind.SERVICE, re.compile(r"/(init\.scope)(?=/|$)"), lambda found: found[1]),
)
_SESSION_UID = re.compile(r"/user\.slice/user-(\d+)\.slice/")


def home_of(cgroup: str) -> Home | Missing:
    """The home that /proc/PID/cgroup names; Missing where its hierarchies name two different jobs, or where there is nothing to read."""
    paths = [line.split(":", 2)[2] for line in cgroup.splitlines() if line.count(":") >= 2]
    if not paths:
        return Missing("its cgroup cannot be read")
    found = list(_homes(paths))
    if not found:
        return Home(HomeKind.NONE)
    best = [home for home in found if home.kind is found[0].kind]
    names = sorted({home.id for home in best})
    if found[0].kind is HomeKind.JOB and len(names) > 1:
        return Missing(f"its cgroups name several jobs: {', '.join(names)}")
    if found[0].kind is HomeKind.JOB:
        login = any(home.kind is HomeKind.SESSION for home in found) or any("/step_extern" in path for path in paths)
        return Home(HomeKind.JOB, names[0], adopted=login)
    return best[0]


def session_uid(cgroup: str) -> int | None:
    """The user whose login session or manager this is, from systemd's own name for it."""
    found = _SESSION_UID.search(cgroup)
    return None if found is None else int(found[1])


def _homes(paths: list[str]) -> Iterator[Home]:
    for kind, pattern, name in _ROWS:
        for path in paths:
            if (found := pattern.search(path)) is not None:
                yield Home(kind, name(found))
