"""The answer to lists of processes: which of them hold a GPU although nobody owns them any more."""

import re

from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.formats.process_listing import ListedProcess, Listing, parse_processes

# Whoever serves others holds GPUs without any job: the driver's daemons, displays, monitors, the launchers of sessions and containers.
_SERVICE = re.compile(
    r"nvidia-persistenced|fabricmanager|nv-hostengine|dcgm|nvidia-cuda-mps|mps-server|imex|Xorg|/X\b|gnome-shell|xfwm|kwin|gpud|nvidia-smi|"
    r"sshd|systemd|slurmd|slurmstepd|dockerd|containerd|kubelet|\binit\b|cron|dbus|tini\b|rsyslog|node_exporter",
    re.IGNORECASE,
)
_SESSION = re.compile(
    r"\btmux|\bscreen\b|SCREEN|jupyter|ipykernel|vscode|\bbash\b|\bzsh\b|-bash|\bsh\b|systemd --user|sshd:", re.IGNORECASE
)
_REAPER = re.compile(r"systemd --user|tini\b|dumb-init|containerd-shim|conmon|docker-init", re.IGNORECASE)
_PYTHON = re.compile(r"python|torchrun|pt_data_worker|deepspeed|accelerate|\bray::|vllm", re.IGNORECASE)
_KEPT_BUSY_PERCENT = 10.0
_BUSY_CPU_PERCENT = 50.0
_SAFE = (
    "Before any signal ask the job's scheduler once more, and check that these are still the same processes (start time, open GPU files)",
    "Take exactly these pids, never a name: rankpatrol orphans shows them without touching them",
)


def diagnose_processes(text: str) -> Diagnosis | None:
    """`orphan`, `not_orphan` or `undetermined`, or None where the text lists no processes and no users of GPUs."""
    if not any(word in text for word in _WORDS):
        return None
    listing = parse_processes(text)
    nobody = len(listing.processes) + len(listing.named) + len(listing.holders) == 0
    if nobody:
        return _nobody(listing) if listing.nobody_named and _is_listing(text, listing) else None
    if not _is_listing(text, listing):
        return None
    if (found := _alias(listing)) is not None:
        return found
    return _judge(listing)


_WORDS = ("PID", "pid,", "/dev/nvidia", "MiB", "fuser", "ps ")


def _is_listing(text: str, listing: Listing) -> bool:
    if any(word in text for word in ("ProcessGroupNCCL", "Traceback (most recent", "NCCL INFO")):
        return False
    lines = sum(1 for line in text.splitlines() if line.strip())
    return (len(listing.processes) + len(listing.named) + len(listing.holders) + listing.nobody_named) * _LINES_EACH >= lines


# nvidia-smi prints a table of some forty lines around one process.
_LINES_EACH = 12


def _alias(listing: Listing) -> Diagnosis | None:
    """The driver counts processes in the host's namespace: in a container its pids are other processes, or nobody."""
    mistaken = [pid for pid in sorted(listing.named) if _is_somebody_else(listing, pid)]
    if not (listing.namespaced or mistaken) or not listing.named:
        return None
    strangers = mistaken or [
        pid
        for pid in sorted(listing.named)
        if pid in listing.without_device or pid in listing.absent or _is_service(listing.processes.get(pid))
    ]
    unseen = [pid for pid in sorted(listing.named) if pid not in listing.processes and pid not in listing.holders]
    if not strangers and not unseen:
        return None
    pid = (strangers or unseen)[0]
    here = listing.processes.get(pid)
    what = f"is {here.command or 'another program'} here, and holds no GPU device" if here is not None else "does not exist here"
    return Diagnosis(
        verdict="not_orphan",
        cause="pid_namespace_alias",
        certainty=Certainty.SUPPORTED,
        sentence=f"pid {pid} of the driver's list {what}: the driver's pids are those of another pid namespace",
        reasons_for=(f"pid {pid} {what}", "the pids of the driver's list are another namespace's"),
        suggested=("Signal nothing from within the container: ask on the host which process this pid is",),
    )


def _is_somebody_else(listing: Listing, pid: int) -> bool:
    """True where the process of this number here cannot be the one that the driver means."""
    process = listing.processes.get(pid)
    if process is None or process.command is None or pid in listing.holders:
        return False
    return _NEVER_ON_A_GPU.search(process.command) is not None or (pid in listing.unresolved and pid in listing.without_device)


# Programs of the system: the driver never has them as its clients.
_NEVER_ON_A_GPU = re.compile(
    r"(?:^|/)(?:sshd|cron|crond|atd|systemd(?:-\w+)?|init|dbus-daemon|polkitd|rsyslogd|agetty|chronyd|ntpd|tini|dumb-init|bash|sh|sleep)\b(?!.*python)"
)


def _is_service(process: ListedProcess | None) -> bool:
    return process is not None and process.command is not None and _SERVICE.search(process.command) is not None


def _serves(listing: Listing, pid: int) -> bool:
    """True for a service by what is listed of it, or where nothing is, by the name that the driver gives it."""
    process = listing.processes.get(pid)
    return _is_service(process) if process is not None else _SERVICE.search(listing.names.get(pid, "")) is not None


def _judge(listing: Listing) -> Diagnosis:
    candidates = _candidates(listing)
    if not candidates:
        return _nobody(listing)
    words = {pid: _word(listing, pid) for pid in candidates}
    orphans = [pid for pid, (word, _) in words.items() if word == "orphan"]
    if orphans:
        return _orphans(listing, orphans, words)
    unclear = [pid for pid, (word, _) in words.items() if word == "unclear"]
    first = (unclear or list(words))[0]
    return Diagnosis(
        verdict="undetermined" if unclear else "not_orphan",
        cause="unknown" if unclear else "none",
        sentence=f"process {first} {words[first][1]}",
        reasons_for=tuple(f"process {pid} {why}" for pid, (_, why) in words.items()),
        suggested=(_LIST_THEM, _ASK)[bool(listing.processes) :] if unclear else (),
    )


_LIST_THEM = "Add the list of processes (ps -eo pid,ppid,stat,user,args): it tells parents, owners and states"
_ASK = "Ask the scheduler which jobs run on this node, and look at the cgroup of each process (/proc/PID/cgroup)"


def _candidates(listing: Listing) -> list[int]:
    """Whoever holds or is said to hold a GPU; where nothing is said of GPUs, the training processes."""
    using = {pid for pid in listing.holders | listing.named if not _serves(listing, pid)}
    if not using and not listing.holders and (listing.memory_used or not listing.nobody_named):
        using = {pid for pid, its in listing.processes.items() if its.command and _PYTHON.search(its.command) and not _is_service(its)}
    return sorted(using - listing.absent)


def _word(listing: Listing, pid: int) -> tuple[str, str]:
    """What one process is, and why. In order: the scheduler's word, the family, then what only hints."""
    process = listing.processes.get(pid)
    job = _job(listing, pid)
    if job is not None and job in listing.known_jobs:
        return "owned", f"belongs to job {job}, which the scheduler runs"
    nothing_runs = listing.live_jobs is not None and not listing.live_jobs
    theirs = listing.jobs_of_users.get(process.user or "") if process is not None else None
    idle_user = theirs is not None and not theirs
    ended = job is not None and (
        theirs is not None or job in listing.ended_jobs or (listing.live_jobs is not None and job not in listing.live_jobs)
    )
    if listing.scheduler_failed:
        return "unclear", "cannot be judged: the scheduler gave no clear answer"
    if ended:
        return "orphan", f"belongs to job {job}, which the scheduler does not run any more"
    if job is None and (nothing_runs or idle_user) and pid in listing.holders | listing.named:
        return "orphan", "holds a GPU, and the scheduler runs no job that could own it"
    if process is None:
        return "unclear", "is not in the list of processes" if listing.processes else _NO_LIST
    return _by_state(listing, process) or _by_family(listing, process)


_NO_LIST = "holds a GPU, and no list of processes was given that would tell whose it is"


def _job(listing: Listing, pid: int) -> str | None:
    """The job of a process, or the one that its parents say: the environment is inherited."""
    for _ in range(_MOST_PARENTS):
        if (job := listing.jobs.get(pid)) is not None:
            return job
        process = listing.processes.get(pid)
        if process is None or process.parent_pid is None or process.parent_pid <= 1:
            return None
        pid = process.parent_pid
    return None


_MOST_PARENTS = 32


def _by_state(listing: Listing, process: ListedProcess) -> tuple[str, str] | None:
    """What a state alone decides: a zombie holds nothing, and whoever survived SIGKILL in state D hears no signal."""
    state = process.state or ""
    if state.startswith("Z"):
        if process.pid in listing.named | listing.holders:
            return "unclear", "is a zombie, and is said to hold a GPU: a thread of it may still run"
        return "owned", "is a zombie: it holds nothing but its number, until its parent asks for its end"
    if state.startswith("D") and (process.pid in listing.unkilled or (listing.unkilled and len(listing.processes) == 1)):
        return "orphan", "did not end by SIGKILL (state D)"
    return None


def _by_family(listing: Listing, process: ListedProcess) -> tuple[str, str]:
    if process.parent_pid is None:
        return "unclear", "has a parent that is not listed"
    if process.parent_pid != 1:
        return _with_parent(listing, process)
    return _without_parent(listing, process)


def _with_parent(listing: Listing, process: ListedProcess) -> tuple[str, str]:
    parent = listing.processes.get(process.parent_pid or 0)
    if parent is None:
        known = len(listing.processes) > 2 and process.parent_pid is not None
        return (
            ("unclear", f"has a parent ({process.parent_pid}) that is not listed")
            if known
            else ("unclear", "has a parent that is not listed")
        )
    if parent.command and _REAPER.search(parent.command):
        return "unclear", f"is a child of {parent.pid} ({parent.command}), which takes over whoever lost its parent"
    if parent.parent_pid == 1 and parent.command and _PYTHON.search(parent.command) and not _SESSION.search(parent.command):
        word, why = _without_parent(listing, parent)
        return word, f"is a child of {parent.pid}, which {why}"
    return "owned", f"has a living parent, {parent.pid} ({parent.command or 'unknown'})"


def _without_parent(listing: Listing, process: ListedProcess) -> tuple[str, str]:
    """PPID 1 alone proves nothing: whoever was started by nohup, setsid, a service or a container has it as well."""
    state = process.state or ""
    busy = (listing.gpu_busy_percent or 0.0) >= _KEPT_BUSY_PERCENT or (process.cpu_percent or 0.0) >= _BUSY_CPU_PERCENT
    session = _session_of(listing, process)
    holds = process.pid in listing.holders | listing.named or listing.memory_used
    leads = "s" in state[1:] and len(listing.holders | listing.named) < _FEWEST_TO_BE_A_GROUP
    # In order: the first that holds speaks.
    rows = (
        (state.startswith("D"), "orphan", " and is in uninterruptible sleep (state D)"),
        (listing.namespaced, "unclear", ", but in a container pid 1 may be its launcher"),
        (process.pid in listing.sessions, "owned", ", and belongs to a service or a session that is shown"),
        (listing.progress, "owned", ", and gets on: what it writes is seconds old"),
        ((process.terminal or "?").startswith(("pts", "tty")), "unclear", ", but has a terminal"),
        (leads, "unclear", ", but leads a session of its own: somebody may have put it there on purpose"),
        (session is not None, "unclear", f", but its user has a session on this node ({session})"),
        (busy or state.startswith("R"), "unclear", ", but it works: a detached training looks the same"),
        (holds, "orphan", " and holds a GPU without working"),
        (True, "unclear", ", but whether it holds a GPU is not shown"),
    )
    return next((word, f"has lost its parent (PPID 1){why}") for applies, word, why in rows if applies)


def _session_of(listing: Listing, process: ListedProcess) -> str | None:
    """A session of the same user, where nothing ties the process to a job."""
    if process.user is None or listing.jobs:
        return None
    return next((its.command for its in listing.processes.values() if its.user == process.user and _is_session(its)), None)


def _is_session(process: ListedProcess) -> bool:
    return process.command is not None and _SESSION.search(process.command) is not None


_FEWEST_TO_BE_A_GROUP = 2


def _orphans(listing: Listing, orphans: list[int], words: dict[int, tuple[str, str]]) -> Diagnosis:
    stuck = [pid for pid in orphans if (its := listing.processes.get(pid)) and (its.state or "").startswith("D")]
    by_scheduler = all(_job(listing, pid) for pid in orphans)
    pids = ", ".join(str(pid) for pid in orphans)
    plural = len(orphans) > 1
    who = "processes" if plural else "process"
    return Diagnosis(
        verdict="orphan",
        cause="orphan_unkillable" if stuck else "orphan_worker",
        certainty=Certainty.SUPPORTED if by_scheduler else Certainty.SUSPECTED,
        sentence=f"{who} {pids} outlived {'their' if plural else 'its'} job: process {orphans[0]} {words[orphans[0]][1]}",
        reasons_for=tuple(f"process {pid} {words[pid][1]}" for pid in orphans),
        reasons_against=tuple(f"process {pid} {why}" for pid, (word, why) in words.items() if word != "orphan"),
        suggested=(
            ("No signal ends a process in state D: find what it waits for (/proc/PID/wchan), a mount or a driver; drain the node",)
            if stuck
            else _SAFE
        ),
    )


_LOOK = ("Look for open device files, also of threads: sudo fuser -v /dev/nvidia*",)


def _nobody(listing: Listing) -> Diagnosis:
    why = "GPU memory is used, and nobody is shown that holds it" if listing.memory_used else "no process that may hold a GPU is shown"
    services = [pid for pid in listing.holders | listing.named if _serves(listing, pid)]
    if listing.nobody_named and not listing.memory_used and not listing.holders:
        return Diagnosis(
            verdict="not_orphan", cause="none", sentence="nobody holds a GPU: none is named by the driver, and no memory is used"
        )
    if services and not listing.memory_used:
        return Diagnosis(verdict="not_orphan", cause="none", sentence=f"only services hold GPUs: process {services[0]}")
    return Diagnosis(verdict="undetermined", cause="unknown", sentence=why, suggested=_LOOK if listing.memory_used else ())
