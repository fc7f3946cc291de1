"""What `rankpatrol orphans` prints: the table, the plan, one document, and a line of news."""

import pwd
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say
from rankpatrol.core.counts import say_count
from rankpatrol.core.records import Missing
from rankpatrol.orphans.nvml_words import trusted
from rankpatrol.orphans.plan import ReapPlan
from rankpatrol.orphans.reap import Released
from rankpatrol.orphans.records import GpuSeen, Judged, Scan, Verdict

_STYLES = {Verdict.ORPHAN: "bold red", Verdict.GHOST_MEMORY: "bold red", Verdict.STUCK: "bold yellow", Verdict.LIKELY: "yellow"}


def show(scan: Scan, judged: Sequence[Judged], *, names: bool) -> None:
    """The table, for people; without `names` users are numbers."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    nvml = scan.gpus.reason.removeprefix("NVML: ") if isinstance(scan.gpus, Missing) else say_count(len(scan.gpus), "GPU")
    console.print(shown(f"{scan.node} · {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(scan.at_unix_s))} · NVML: {nvml}"))
    if not scan.initial_namespace:
        console.print(shown("This is a container: process numbers here cannot be trusted, and nothing is ever done here.", style="yellow"))
    if scan.unseen:
        hidden = say_count(scan.unseen, "process", "processes")
        console.print(shown(f"{hidden} of other users could not be looked into: run as root to see all.", style="yellow"))
    for gpu in () if isinstance(scan.gpus, Missing) else scan.gpus:
        console.print(shown(_say_gpu(gpu)))
    if judged:
        console.print(_table(scan, judged, names=names))
        for advice in dict.fromkeys(one.advice for one in judged if one.advice):
            pids = ", ".join(str(one.process.id.pid) if one.process else f"GPU {one.gpu}" for one in judged if one.advice == advice)
            console.print(shown(f"{pids}: {advice}", style="dim"))
    else:
        console.print(shown("nobody holds a device"))


def _say_gpu(gpu: GpuSeen) -> str:
    used = "?" if isinstance(gpu.used_bytes, Missing) else f"{gpu.used_bytes / (1 << 20):.0f}"
    total = "?" if isinstance(gpu.total_bytes, Missing) else f"{gpu.total_bytes / (1 << 20):.0f}"
    busy = "?" if isinstance(gpu.busy_percent, Missing) else str(gpu.busy_percent)
    return f"GPU {gpu.index}  {gpu.name}  {used} / {total} MiB  {busy} %"


def _table(scan: Scan, judged: Sequence[Judged], *, names: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("GPU", "memory", "pid", "holder", "owner", "job", "verdict", "why"):
        right = column in {"memory", "pid"}
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "why", ratio=1 if column == "why" else None)
    order = list(Verdict)
    for one in sorted(judged, key=lambda one: (order.index(one.verdict), one.process.id.pid if one.process else 0)):
        process = one.process
        cells = (
            _gpus_of(one, scan),
            _memory_of(one, scan),
            "" if process is None else str(process.id.pid),
            "-" if process is None else process.name,
            "" if process is None else _user(process.uid, names=names),
            one.job,
        )
        table.add_row(*map(shown, cells), shown(one.verdict.value, style=_STYLES.get(one.verdict, "")), shown(one.why))
    return table


def _gpus_of(one: Judged, scan: Scan) -> str:
    if one.process is None:
        return "" if one.gpu is None else str(one.gpu)
    if isinstance(one.process.devices, Missing):
        return "?"
    known = {gpu.device: str(gpu.index) for gpu in (() if isinstance(scan.gpus, Missing) else scan.gpus)}
    own = [path for path in one.process.devices if re.search(r"\d$", path)] or list(one.process.devices)
    return ",".join(dict.fromkeys(known.get(path) or re.sub(r"^.*nvidia(\d+)$|^.*/", r"\1", path) for path in own))


def _memory_of(one: Judged, scan: Scan) -> str:
    """What NVML names for it; for a holder that NVML does not name, at most what the named ones leave over."""
    if one.used_bytes is not None:
        return f"{one.used_bytes / (1 << 20):.0f} MiB"
    if one.process is None or isinstance(one.process.devices, Missing) or one.verdict is Verdict.SERVICE:
        return ""
    rest = [
        rest for gpu in (() if isinstance(scan.gpus, Missing) else scan.gpus) if (rest := _unnamed_bytes(gpu, one.process.devices, scan))
    ]
    return f"<= {sum(rest) / (1 << 20):.0f} MiB" if rest else ""


def _unnamed_bytes(gpu: GpuSeen, held: Sequence[str], scan: Scan) -> int:
    """Memory of this GPU that no process is named for, where it is held and the list can be believed."""
    named = trusted(gpu, scan)
    if gpu.device not in held or isinstance(named, Missing) or isinstance(gpu.used_bytes, Missing):
        return 0
    return max(0, gpu.used_bytes - sum(process.used_bytes or 0 for process in named if process.pid in scan.living))


def _user(uid: int, *, names: bool) -> str:
    """A name may have to be asked for over the network: an Epilog does not."""
    try:
        return pwd.getpwuid(uid).pw_name if names else str(uid)
    except KeyError:
        return str(uid)


def say_released(released: Sequence[Released]) -> None:
    """What came of each release."""
    for one in released:
        signals = f" ({', '.join(one.signals)})" if one.signals else ""
        say(f"{'released' if one.done else 'NOT released'} {one.process.pid}{signals} in {one.seconds:.1f} s: {one.why}")
        if one.evidence:
            say(f"  evidence: {one.evidence}")


def say_plan(what: ReapPlan, released: Sequence[Released], *, asked: bool, yes: bool) -> None:
    """What was done, or would be."""
    if what.alert:
        say(what.alert)
    say_released(released)
    if what.orphans and not yes:
        pids = ", ".join(str(one.process.pid) for one in what.orphans)
        how = "add --yes" if asked else "add --reap --yes"
        say(f"dry run: {len(what.orphans)} proven, {how} to end exactly these: {pids}")


def document(scan: Scan, judged: Sequence[Judged], what: ReapPlan, released: Sequence[Released]) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "node": scan.node,
        "at_unix_s": scan.at_unix_s,
        "pids_can_be_trusted": scan.initial_namespace,
        "unseen_processes": scan.unseen,
        "scan_seconds": scan.seconds,
        "gpus": scan.gpus,
        "findings": [finding(one) for one in judged],
        "plan": what,
        "released": released,
    }


def finding(one: Judged) -> dict[str, Any]:
    """One verdict, for programs."""
    process = one.process
    who = (
        {} if process is None else {"pid": process.id.pid, "start_ticks": process.id.start_ticks, "name": process.name, "uid": process.uid}
    )
    held = {} if process is None else {"devices": process.devices, "state": process.state}
    said = {"verdict": one.verdict, "rows": one.rows, "why": one.why, "advice": one.advice}
    return {**said, "proven": one.proof is not None, "job": one.job, "gpu": one.gpu, "used_bytes": one.used_bytes, **who, **held}


def line_of(one: Judged, at_unix_s: float) -> str:
    """One verdict as a line of news."""
    who = f"GPU {one.gpu}" if one.process is None else f"process {one.process.id.pid} ({one.process.name})"
    advice = f" {one.advice}" if one.advice else ""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at_unix_s))} {one.verdict}: {who}: {one.why}.{advice}"
