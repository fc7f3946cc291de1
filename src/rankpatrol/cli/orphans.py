"""`rankpatrol orphans`: GPU memory held by dead jobs. Shows; ends what is proven only with `--reap --yes`."""

import os
import pwd
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.durations import parse_duration_s
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.orphans.jobs import AllJobs, EpilogJobs, JobWords, RunJobs, SlurmJobs
from rankpatrol.orphans.nvml import GpuWitness
from rankpatrol.orphans.nvml_words import trusted
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import ReapPlan, plan
from rankpatrol.orphans.reap import ReapRules, Released, reap, stopped_by
from rankpatrol.orphans.records import GpuSeen, Judged, Policy, Scan, Verdict
from rankpatrol.orphans.scan import Scanner, device_patterns
from rankpatrol.orphans.state import evidence_folder

_GRAVE = frozenset({Verdict.ORPHAN, Verdict.GHOST_MEMORY, Verdict.STUCK})
_WORTH_A_LOOK = frozenset(
    {Verdict.LIKELY, Verdict.ORPHAN_CONTAINER, Verdict.LEFT_OVER, Verdict.MISPLACED, Verdict.BAD_READER, Verdict.GHOST_TELEMETRY}
)
_STYLES = {Verdict.ORPHAN: "bold red", Verdict.GHOST_MEMORY: "bold red", Verdict.STUCK: "bold yellow", Verdict.LIKELY: "yellow"}


def _seconds(_: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return parse_duration_s(value)
    except UsageProblem as problem:
        raise click.BadParameter(f"{problem}. {problem.help}", param=param) from problem


@click.command(short_help="Show who holds the GPUs here, and what nobody owns.")
@click.option("--reap", "reap_them", is_flag=True, help="End what is proven; without --yes, only say what would be done.")
@click.option("--yes", is_flag=True, help="Really end it.")
@click.option("--job", metavar="JOB", help="Only this job's processes.  [default: all]")
@click.option("--epilog", is_flag=True, help="Run by slurmd as the Epilog of --job: no Slurm command, bounded time, exit code 2 to drain.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--device", "devices", multiple=True, metavar="PATTERN", help="Pattern of device files; may be repeated.  [default: the usual ones]"
)
@click.option("--scans", type=click.IntRange(1), metavar="N", default=3, show_default=True, help="How many looks; one look proves nothing.")
@click.option("--every", "every_s", callback=_seconds, default="1s", metavar="DURATION", show_default=True, help="Time between two looks.")
@click.option(
    "--grace", "grace_s", callback=_seconds, default="150s", metavar="DURATION", show_default=True, help="How long a job must have ended."
)
@click.option(
    "--most", type=click.IntRange(1), metavar="N", default=8, show_default=True, help="If more processes are proven, none is ended."
)
def orphans(
    reap_them: bool,
    yes: bool,
    job: str | None,
    epilog: bool,
    as_json: bool,
    devices: tuple[str, ...],
    scans: int,
    every_s: float,
    grace_s: float,
    most: int,
) -> int:
    """Show who holds the GPUs here, whose they are, and what is proven to belong to nobody any more.

    Nothing is touched without --reap --yes, and then only what carries a proof. Exit code: 0 all is accounted for, 1 worth a look,
    2 orphans or memory that nobody holds, 3 cannot be told (in a container, or without root). As an Epilog: 0, or 2 to drain the node.
    """
    _check(job, epilog=epilog, yes=yes, reap_them=reap_them)
    policy = Policy(grace_s=grace_s, most=most)
    witness = GpuWitness()
    scanner = Scanner(_authority(job if epilog else None), devices=devices or device_patterns(os.environ), gpus=witness.look)
    patrol = OrphanPatrol(scanner, policy, evidence=evidence_folder(), gpus=witness.fresh)
    judged = _look(patrol, scans, every_s)
    if job is not None:
        judged = tuple(one for one in judged if one.job == job or one.job.startswith(f"{job}, "))
    rules = ReapRules(idle_floor_bytes=policy.idle_floor_bytes)
    what = plan(judged, policy, stopped_by=stopped_by(rules.kill_switches))
    released = reap(what, patrol, rules) if reap_them and yes else ()
    assert patrol.last is not None, "_look scans at least once"  # ruff: ignore[S101] - a programming error
    if as_json:
        say_json(_document(patrol.last, judged, what, released), indent=2)
    else:
        _show(patrol.last, judged, names=not epilog)
        _say_plan(what, released, asked=reap_them, yes=yes)
    return _epilog_code(judged, released) if epilog else _code(patrol.last, judged, released)


def _check(job: str | None, *, epilog: bool, yes: bool, reap_them: bool) -> None:
    if epilog and job is None:
        raise UsageProblem("an epilog belongs to a job", help='In Epilog: rankpatrol orphans --job "$SLURM_JOB_ID" --epilog')
    if yes and not reap_them:
        raise UsageProblem("--yes goes with --reap", help="Write --reap --yes to end what is proven, or neither to look only.")


def _authority(epilog_job: str | None) -> JobWords:
    if epilog_job is not None:
        return EpilogJobs(epilog_job, os.environ)
    return AllJobs([RunJobs(), *([SlurmJobs()] if shutil.which("squeue") else [])])


def _look(patrol: OrphanPatrol, scans: int, every_s: float) -> tuple[Judged, ...]:
    judged = patrol.look()
    for _ in range(scans - 1):
        time.sleep(every_s)
        judged = patrol.look()
    return judged


def _code(scan: Scan, judged: Sequence[Judged], released: Sequence[Released]) -> ExitCode:
    done = {one.process for one in released if one.done}
    open_ones = [one for one in judged if one.process is None or one.process.id not in done]
    if any(one.verdict in _GRAVE for one in open_ones):
        return ExitCode.CRITICAL
    if not scan.initial_namespace:
        return ExitCode.UNKNOWN
    if any(one.verdict in _WORTH_A_LOOK or (one.verdict is Verdict.UNKNOWN and _holds(one)) for one in open_ones):
        return ExitCode.WARNING
    return ExitCode.UNKNOWN if scan.unseen else ExitCode.OK


def _epilog_code(judged: Sequence[Judged], released: Sequence[Released]) -> ExitCode:
    """Any other exit code drains the node (slurm.conf(5), Epilog): only for what is known to hold it, never for not knowing."""
    done = {one.process for one in released if one.done}
    holding = [one for one in judged if one.process is not None and one.process.id not in done and _holds(one)]
    return ExitCode.CRITICAL if any(one.verdict in {Verdict.ORPHAN, Verdict.STUCK} or 16 in one.rows for one in holding) else ExitCode.OK


def _holds(one: Judged) -> bool:
    return one.process is None or (bool(one.process.devices) and not isinstance(one.process.devices, Missing))


def _show(scan: Scan, judged: Sequence[Judged], *, names: bool) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    nvml = scan.gpus.reason if isinstance(scan.gpus, Missing) else f"{len(scan.gpus)} GPUs"
    console.print(shown(f"{scan.node} · {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(scan.at_unix_s))} · NVML: {nvml}"))
    if not scan.initial_namespace:
        console.print(shown("This is a container: process numbers here cannot be trusted, and nothing is ever done here.", style="yellow"))
    if scan.unseen:
        console.print(shown(f"{scan.unseen} processes of other users could not be looked into: run as root to see all.", style="yellow"))
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


def _say_plan(what: ReapPlan, released: Sequence[Released], *, asked: bool, yes: bool) -> None:
    if what.alert:
        say(what.alert)
    for one in released:
        signals = f" ({', '.join(one.signals)})" if one.signals else ""
        say(f"{'released' if one.done else 'NOT released'} {one.process.pid}{signals} in {one.seconds:.1f} s: {one.why}")
        if one.evidence:
            say(f"  evidence: {one.evidence}")
    if what.orphans and not yes:
        pids = ", ".join(str(one.process.pid) for one in what.orphans)
        how = "add --yes" if asked else "add --reap --yes"
        say(f"dry run: {len(what.orphans)} proven, {how} to end exactly these: {pids}")


def _document(scan: Scan, judged: Sequence[Judged], what: ReapPlan, released: Sequence[Released]) -> dict[str, Any]:
    return {
        "node": scan.node,
        "at_unix_s": scan.at_unix_s,
        "pids_can_be_trusted": scan.initial_namespace,
        "unseen_processes": scan.unseen,
        "scan_seconds": scan.seconds,
        "gpus": scan.gpus,
        "findings": [_finding(one) for one in judged],
        "plan": what,
        "released": released,
    }


def _finding(one: Judged) -> dict[str, Any]:
    process = one.process
    who = (
        {} if process is None else {"pid": process.id.pid, "start_ticks": process.id.start_ticks, "name": process.name, "uid": process.uid}
    )
    held = {} if process is None else {"devices": process.devices, "state": process.state}
    said = {"verdict": one.verdict, "rows": one.rows, "why": one.why, "advice": one.advice}
    return {**said, "proven": one.proof is not None, "job": one.job, "gpu": one.gpu, "used_bytes": one.used_bytes, **who, **held}
