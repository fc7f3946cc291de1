"""`rankpatrol orphans`: GPU memory held by dead jobs. Shows; ends what is proven only with `--reap --yes`."""

import os
import shutil
import time
from collections.abc import Sequence

import click
import msgspec

from rankpatrol.cli.orphan_watching import NVML_S, watch_node
from rankpatrol.cli.orphan_words import document, say_plan, show
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.durations import parse_duration_s
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.orphans.ended_here import EndedHere
from rankpatrol.orphans.jobs import AllJobs, EpilogJobs, JobWords, RunJobs, SlurmJobs
from rankpatrol.orphans.nvml import GpuWitness
from rankpatrol.orphans.patrol import OrphanPatrol
from rankpatrol.orphans.plan import plan
from rankpatrol.orphans.reap import ReapRules, Released, reap, stopped_by
from rankpatrol.orphans.records import Judged, Policy, Scan, Verdict
from rankpatrol.orphans.scan import Scanner, device_patterns
from rankpatrol.orphans.state import Remembered, seen_file, state_folder

_GRAVE = frozenset({Verdict.ORPHAN, Verdict.GHOST_MEMORY, Verdict.STUCK})
_WORTH_A_LOOK = frozenset(
    {Verdict.LIKELY, Verdict.ORPHAN_CONTAINER, Verdict.LEFT_OVER, Verdict.MISPLACED, Verdict.BAD_READER, Verdict.GHOST_TELEMETRY}
)


_WATCH_EVERY_S = 60.0


def _seconds(_: click.Context, param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration_s(value)
    except UsageProblem as problem:
        raise click.BadParameter(f"{problem}. {problem.help}", param=param) from problem


@click.command(short_help="Show who holds the GPUs here, and what nobody owns.")
@click.option("--reap", "reap_them", is_flag=True, help="End what is proven; without --yes, only say what would be done.")
@click.option("--yes", is_flag=True, help="Really end it.")
@click.option("--job", metavar="JOB", help="Only this job's processes; with --prolog, all but this job's.  [default: all]")
@click.option("--epilog", is_flag=True, help="Run by slurmd as the Epilog of --job: no Slurm command, bounded time, exit code 2 to drain.")
@click.option("--prolog", is_flag=True, help="Run by slurmd as the Prolog of --job: what earlier jobs left, by the word of their Epilogs.")
@click.option("--watch", is_flag=True, help="Go on looking, and say what is new; --json prints a document a line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--device", "devices", multiple=True, metavar="PATTERN", help="Pattern of device files; may be repeated.  [default: the usual ones]"
)
@click.option(
    "--scans", type=click.IntRange(1), metavar="N", help="How often to look; one look proves nothing.  [default: 3; 2 in a Prolog]"
)
@click.option("--every", "every_s", callback=_seconds, metavar="DURATION", help="Time between two looks.  [default: 1s; 60s with --watch]")
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
    prolog: bool,
    watch: bool,
    as_json: bool,
    devices: tuple[str, ...],
    scans: int | None,
    every_s: float | None,
    grace_s: float,
    most: int,
) -> int:
    """Show who holds the GPUs here, whose they are, and what is proven to belong to nobody any more.

    Nothing is touched without --reap --yes, and then only what carries a proof. What was seen is remembered for the next call. Exit
    codes: 0 all is accounted for, 1 worth a look, 2 orphans or memory that nobody holds, 3 cannot be told (in a container, or without
    root). As a Prolog or Epilog: 0, or 2 to drain the node.
    """
    in_slurm = epilog or prolog
    _check(job, epilog=epilog, prolog=prolog, unproven=yes and not reap_them)
    if watch and (in_slurm or job is not None or scans is not None):
        raise UsageProblem("--watch looks at the whole node until it is ended", help="Write: rankpatrol orphans --watch --every 60s")
    policy = Policy(grace_s=grace_s, most=most)
    rules = ReapRules(idle_floor_bytes=policy.idle_floor_bytes)
    if prolog:  # Slurm gives it 10 s as shipped (BatchStartTimeout, slurm.conf(5)): two looks, and these
        rules = msgspec.structs.replace(rules, term_s=2.0, kill_s=2.0, memory_s=1.0)
    patterns = devices or device_patterns(os.environ)
    patrol = _patrol(_authority(job, epilog=epilog, prolog=prolog), policy, patterns)
    memory = Remembered(seen_file(), patterns)
    if not in_slurm:  # what was seen while the job ran is no sight of an orphan: there is no grace time there
        patrol.history = memory.recall(time.time())
    if watch:
        return watch_node(patrol, memory, rules if reap_them and yes else None, every_s=every_s or _WATCH_EVERY_S, as_json=as_json)
    scan, judged = _look(patrol, scans or (2 if prolog else 3), 1.0 if every_s is None else every_s)
    if not in_slurm:
        _say_forgotten(memory.keep(patrol.history, scan.at_unix_s))
    if job is not None:
        judged = tuple(one for one in judged if (one.job == job or one.job.startswith(f"{job}, ")) != prolog)
    what = plan(judged, policy, stopped_by=stopped_by(rules.kill_switches))
    released = reap(what, patrol, rules) if reap_them and yes else ()
    if as_json:
        say_json(document(scan, judged, what, released), indent=2)
    else:
        show(scan, judged, names=not in_slurm)
        say_plan(what, released, asked=reap_them, yes=yes)
    return _drain_code(judged, released) if in_slurm else _code(scan, judged, released)


def _patrol(authority: JobWords, policy: Policy, patterns: tuple[str, ...]) -> OrphanPatrol:
    witness = GpuWitness()
    scanner = Scanner(authority, devices=patterns, gpus=witness.look)
    return OrphanPatrol(scanner, policy, evidence=state_folder() / "orphans", gpus=witness.fresh)


def _say_forgotten(why: str) -> None:
    if why:
        say(f"rankpatrol: what was seen is not remembered for the next call: {why}", err=True)


def _check(job: str | None, *, epilog: bool, prolog: bool, unproven: bool) -> None:
    if (epilog or prolog) and job is None:
        script = "Prolog" if prolog else "Epilog"
        command = f'rankpatrol orphans --job "$SLURM_JOB_ID" --{script.lower()}'
        raise UsageProblem(f"{'a Prolog' if prolog else 'an Epilog'} belongs to a job", help=f"In {script}: {command}")
    if epilog and prolog:
        raise UsageProblem("--prolog and --epilog exclude each other", help="Give the one that slurmd runs this as.")
    if unproven:
        raise UsageProblem("--yes goes with --reap", help="Write --reap --yes to end what is proven, or neither to look only.")


def _authority(job: str | None, *, epilog: bool, prolog: bool) -> JobWords:
    """Whose words count. An Epilog's own word is kept for the Prologs to come."""
    # A Prolog's looks are all its own; elsewhere one of them may be of the time when the job still ran.
    ended_here = EndedHere(state_folder() / "ended-jobs", grace_s=0.0 if prolog else None)
    if epilog and job is not None:
        told = EpilogJobs(job, os.environ)
        for word in told.words(frozenset({job})).values():
            _say_forgotten(ended_here.remember(word))
        return told
    return AllJobs([RunJobs(), ended_here, *([SlurmJobs()] if shutil.which("squeue") and not prolog else [])])


def _look(patrol: OrphanPatrol, scans: int, every_s: float) -> tuple[Scan, tuple[Judged, ...]]:
    """The last scan, judged in the light of all."""
    if scans == 1:
        patrol.gpus(NVML_S)  # else asked for while one looks, and known at the second look
    judged = patrol.look()
    for _ in range(scans - 1):
        time.sleep(every_s)
        judged = patrol.look()
    assert patrol.last is not None, "it has looked"  # ruff: ignore[S101] - a programming error
    return patrol.last, judged


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


def _drain_code(judged: Sequence[Judged], released: Sequence[Released]) -> ExitCode:
    """Any other exit code drains the node (slurm.conf(5), Prolog and Epilog): only for what is known to hold it, never for not knowing."""
    done = {one.process for one in released if one.done}
    holding = [one for one in judged if one.process is not None and one.process.id not in done and _holds(one)]
    return ExitCode.CRITICAL if any(one.verdict in {Verdict.ORPHAN, Verdict.STUCK} or 16 in one.rows for one in holding) else ExitCode.OK


def _holds(one: Judged) -> bool:
    return one.process is None or (bool(one.process.devices) and not isinstance(one.process.devices, Missing))
