"""May ranks be traced from here? What the kernel's rules say, and what py-spy really does with a child of our own."""

import contextlib
import os
import re
import select
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from rankpatrol.collect.stacks import take_stack
from rankpatrol.core.counts import say_count
from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Stack
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.system.process import identify

CAP_SYS_PTRACE = 19  # linux/capability.h
_READY_S, _STACK_S = 10.0, 8.0


class TracingRules(Record, frozen=True, kw_only=True):
    """What decides over ptrace here: Yama's scope (None: no Yama), our uid and capability, our user namespace, what hides /proc."""

    yama: int | None
    uid: int
    has_capability: bool
    own_user_namespace: bool
    hidepid: str | None
    container: str | None


def look_at_rules(root: Path = Path("/proc")) -> TracingRules:
    """Read them."""
    return TracingRules(
        yama=_number(root / "sys/kernel/yama/ptrace_scope"),
        uid=os.geteuid(),
        has_capability=_has_capability((root / "self/status").read_text()),
        own_user_namespace=not _is_identity((root / "self/uid_map").read_text()),
        hidepid=hidepid_of((root / "self/mountinfo").read_text(errors="replace"), {os.getegid(), *os.getgroups()}),
        container=_container(),
    )


def judge_rules(rules: TracingRules) -> tuple[Row, ...]:
    """What these rules mean for the stacks of ranks that run as this user, and as another one."""
    return (_yama_row(rules), _others_row(rules), *_hidepid_rows(rules))


def look_at_child() -> Stack | Missing:
    """The stack of a Python of our own that stands still. Missing with the reason where none could be taken."""
    code = "import sys, time\nprint('ready', flush=True)\ntime.sleep(60)"
    if not os.access(sys.executable, os.X_OK):
        return Missing(f"this user cannot start {sys.executable}")
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        return _stack_of(child)
    finally:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(2.0)
        if child.stdout is not None:
            child.stdout.close()


def judge_child(stack: Stack | Missing) -> tuple[Row, ...]:
    """Whether the tool does its work at all."""
    match stack:
        case Stack():
            frames = sum(len(thread.frames) for thread in stack.threads)
            return (Row("stacks", Level.OK, f"py-spy took a stack of a child of ours ({say_count(frames, 'frame')}), without a pause"),)
        case Missing(reason=why) if "not installed" in why:
            return (Row("stacks", Level.CRITICAL, why, "pip install py-spy, beside rankpatrol"),)
        case Missing(reason=why) if "cannot start" in why:
            return (Row("stacks", Level.UNKNOWN, why, "Run doctor as the user who trains."),)
        case Missing(reason=why) if "forbids tracing" in why:
            return (
                Row(
                    "stacks",
                    Level.FORBIDDEN,
                    why,
                    "Under `run` ranks tell their stacks themselves (at SIGURG; --no-probe declines it): culprits are named, "
                    "mostly as `suspected`, and not acted upon then.",
                ),
            )
        case Missing(reason=why):
            return (
                Row(
                    "stacks",
                    Level.CRITICAL,
                    f"py-spy took no stack of a child of ours: {why}",
                    "Is its version older than the training's Python? pip install -U py-spy",
                ),
            )


def hidepid_of(mountinfo: str, groups: Collection[int]) -> str | None:
    """How the /proc that we see hides others from us, or None where it does not (proc(5), mount options; its gid is 0 unless given)."""
    options = [_options(line) for line in mountinfo.splitlines()]
    seen = [each for each in options if each is not None][-1:]  # later mounts cover earlier ones
    if not seen or (hidden := seen[0].get("hidepid")) in {None, "0", "off"}:
        return None
    # ptraceable asks for ptrace access whatever the group; noaccess and invisible spare the group.
    spared = hidden not in {"4", "ptraceable"} and int(seen[0].get("gid", "0")) in groups
    return None if spared else hidden


def _options(line: str) -> dict[str, str] | None:
    """The options of a mount of proc on /proc, or None for any other."""
    place, _, kind = line.partition(" - ")
    fields = place.split(" ")
    if len(fields) < 6 or fields[4] != "/proc" or not kind.startswith("proc "):
        return None
    words = f"{fields[5]},{kind.rpartition(' ')[2]}".split(",")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _yama_row(rules: TracingRules) -> Row:
    if rules.yama in {None, 0}:
        scope = "Yama is not there" if rules.yama is None else "kernel.yama.ptrace_scope=0"
        return Row("yama", Level.OK, f"ranks of this user may be traced ({scope})")
    if rules.yama == 3:
        return Row(
            "yama",
            Level.FORBIDDEN,
            "kernel.yama.ptrace_scope=3: nobody may trace anybody, until the machine starts anew",
            "Boot with another scope; until then hangs stay `suspected`.",
        )
    if rules.has_capability:
        return Row("yama", Level.OK, f"kernel.yama.ptrace_scope={rules.yama}, and CAP_SYS_PTRACE is here")
    if rules.yama == 2:
        return Row(
            "yama",
            Level.FORBIDDEN,
            "kernel.yama.ptrace_scope=2: only CAP_SYS_PTRACE may trace",
            "Give it to the agent (systemd: AmbientCapabilities=CAP_SYS_PTRACE), or: sysctl kernel.yama.ptrace_scope=1",
        )
    return Row(
        "yama",
        Level.OK,
        "kernel.yama.ptrace_scope=1: ranks under the shim allow it; others (--pid, watch) do not",
        "For those: CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0",
    )


def _others_row(rules: TracingRules) -> Row:
    """ptrace(2), access mode checking: another uid, or more capabilities, needs CAP_SYS_PTRACE in the target's user namespace."""
    where = f" ({rules.container})" if rules.container else ""
    if rules.has_capability and not rules.own_user_namespace:
        return Row("other-users", Level.OK, f"CAP_SYS_PTRACE is here{where}: ranks of other users can be read too")
    if rules.own_user_namespace:
        return Row(
            "other-users",
            Level.WARNING,
            f"a user namespace of our own{where}: ranks outside of it cannot be read, whoever we are in here",
            "Run the agent outside, or in the ranks' own namespace.",
        )
    if rules.uid == 0:
        return Row(
            "other-users",
            Level.WARNING,
            f"root without CAP_SYS_PTRACE{where}: ranks of other users, and root's with more rights, cannot be read",
            "docker run --cap-add SYS_PTRACE; Kubernetes: securityContext.capabilities.add: [SYS_PTRACE]",
        )
    return Row(
        "other-users",
        Level.OK,
        f"this user's own ranks can be read{where}, those of others cannot",
        "Only for a patrol over several users: CAP_SYS_PTRACE",
    )


def _hidepid_rows(rules: TracingRules) -> tuple[Row, ...]:
    if rules.hidepid is None:
        return (Row("hidepid", Level.OK, "/proc shows all processes"),)
    if rules.has_capability and rules.uid == 0:
        return (Row("hidepid", Level.OK, f"/proc is mounted with hidepid={rules.hidepid}; we see through it"),)
    return (
        Row(
            "hidepid",
            Level.WARNING,
            f"/proc is mounted with hidepid={rules.hidepid}: other users' processes are not seen",
            "The patrol of this user's own jobs works. For others: mount -o remount,gid=GROUP /proc, with the agent in GROUP.",
        ),
    )


def _stack_of(child: "subprocess.Popen[bytes]") -> Stack | Missing:
    if child.stdout is None or not select.select([child.stdout], [], [], _READY_S)[0]:
        return Missing(f"a Python of our own was not ready after {_READY_S:g} s")
    process = identify(child.pid)
    return (
        Missing("it ended at once")
        if process is None
        else take_stack(ProcessId(process.boot_id, process.pid, process.start_ticks), deadline_s=_STACK_S)
    )


def _has_capability(status: str) -> bool:
    found = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_SYS_PTRACE & 1)


def _is_identity(uid_map: str) -> bool:
    """user_namespaces(7): the initial namespace maps all ids to themselves."""
    return [line.split() for line in uid_map.splitlines()] == [["0", "0", "4294967295"]]


def _container() -> str | None:
    marks = (
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("/.singularity.d", "Apptainer"),
        ("/var/run/secrets/kubernetes.io", "Kubernetes"),
    )
    return next((name for path, name in marks if os.path.exists(path)), None)  # ruff: ignore[PTH110] - plain strings


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
