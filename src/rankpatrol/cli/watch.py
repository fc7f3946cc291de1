"""`rankpatrol watch`: patrol a job that already runs. Nothing of it is touched, and nobody is ended."""

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from rankpatrol.agent.once import Glimpse, glimpse
from rankpatrol.agent.watching import Wanted, Watching, look_around
from rankpatrol.cli.elsewhere import go_to_job
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.pods import pids_of_job
from rankpatrol.cli.screen import page, shown
from rankpatrol.cli.settings import config_option, setting_options, settled
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import BadInput, ExitCode, NoPermission, UsageProblem
from rankpatrol.discover.records import FoundJob, Survey
from rankpatrol.launch.parent import make_job_dir
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.schedulers.kubernetes_words import is_kubernetes_id
from rankpatrol.system.clock import SystemClock
from rankpatrol.system.process import identify, is_hidden

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Looks at so many jobs at once: each takes seconds, for the most part of waiting, and some CPU for the stacks.
_SIDE_BY_SIDE = 8
_CODES = {"healthy": ExitCode.OK, "benign_wait": ExitCode.OK, "undetermined": ExitCode.UNKNOWN}


@click.command(short_help="Patrol jobs that already run; nothing is touched.")
@click.option(
    "--pid",
    type=click.IntRange(2),
    metavar="PID",
    help="A job by its launcher's process number, or by any process of it.  [default: --job or --all]",
)
@click.option(
    "--job",
    metavar="JOB",
    help="A job by its id: SLURM_JOB_ID, torchrun's --rdzv-id, or k8s:NAMESPACE/KIND/NAME.  [default: --pid or --all]",
)
@click.option("--all", "everything", is_flag=True, help="All jobs of this node that may be read.")
@click.option("--once", is_flag=True, help="Look for some seconds, say what is seen, and leave.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print one JSON document.")
@click.option(
    "--policy",
    type=click.Choice(["observe"]),
    default="observe",
    show_default=True,
    expose_value=False,
    help="What was not started here is not ended.",
)
@setting_options("patience", "jobs-dir", "metrics", "metrics-textfile")
@config_option
@click.option("--record", is_flag=True, help="Keep what the judge saw, for `rankpatrol replay`: recording.jsonl in the job directory.")
@click.option("--job-dir", type=GivenPath(), metavar="JOBDIR", help="Where events and evidence go.  [default: JOBS-DIR/watch-NAME-UTC-PID]")
def watch(
    pid: int | None,
    job: str | None,
    everything: bool,
    once: bool,
    as_json: bool,
    config: Path | None,
    record: bool,
    job_dir: Path | None,
    **given: Any,
) -> int:
    """Patrol jobs that already run: no restart, no probe, nothing touched.

    \b
    rankpatrol watch --pid 4711          a launcher, or any process of the job
    rankpatrol watch --all --once        what goes on here, within some seconds
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    if sum((pid is not None, job is not None, everything)) != 1:
        raise UsageProblem("which job?", help="Give one of --pid PID, --job ID or --all.")
    if as_json and not once:
        raise UsageProblem("--json goes with --once", help="A watch that goes on writes events.jsonl in its job directory.")
    if record and once:
        raise UsageProblem("--record goes with a watch that goes on", help="Leave --once out: some seconds are no recording.")
    settings = settled(config, given)
    in_pods = job is not None and is_kubernetes_id(job)
    if pid is not None and identify(pid) is None and not is_hidden(pid):
        raise BadInput(
            f"there is no process {pid}", help="Its launcher's number is in `ps -ef | grep torchrun`; --all finds all jobs of this node."
        )
    wanted = Wanted(pids=pids_of_job(job or "")) if in_pods else Wanted(pid=pid, job=job)
    jobs, found = look_around(wanted)
    if job is not None and not jobs and not in_pods:
        go_to_job(job, lambda local_id: _words(local_id, settings, job_dir, once=once, as_json=as_json))
    _check(jobs, found, f"pid {pid}" if pid is not None else f"job {job}" if job is not None else "this node", pid)
    if once:
        return _once(jobs, found, as_json=as_json)

    def spec_of(each: FoundJob) -> JobSpec:
        return _spec(each, job_dir if not everything else None, settings, record=record)

    return _follow(wanted, jobs, spec_of)


def _words(job: str, settings: dict[str, Any], job_dir: Path | None, *, once: bool, as_json: bool) -> list[str]:
    """The same command, for the nodes of the job, with the settings of here."""
    here = ["--patience", f"{settings['patience']:.3f}s", "--jobs-dir", str(settings["jobs_dir"].absolute())]
    place = [] if job_dir is None else ["--job-dir", str(job_dir.absolute())]
    place += [] if settings["metrics"] is None else ["--metrics", settings["metrics"]]
    place += [] if settings["metrics_textfile"] is None else ["--metrics-textfile", str(settings["metrics_textfile"].absolute())]
    flags = [flag for flag, wanted in (("--once", once), ("--json", as_json)) if wanted]
    return ["watch", "--job", job, *here, *place, *flags]


def _check(jobs: tuple[FoundJob, ...], found: Survey, what: str, pid: int | None) -> None:
    for each in found.unnumbered:
        say(f"rankpatrol: process {each.process.pid} ({each.name}) trains, but its rank cannot be known: {each.why}", err=True)
    if jobs:
        return
    known = ", ".join(
        f"{job.name} (launcher {job.launcher.pid if job.launcher else 'none'}, {say_count(len(job.ranks), 'rank')})" for job in found.jobs
    )
    asked = [each.process.pid for each in found.unnumbered] if pid is None else [pid]
    kind = BadInput if all(map(_may_look, asked)) else NoPermission
    raise kind(
        f"no distributed training is seen of {what}", help=f"Seen here: {known or 'none'}. Others' processes need their user, or root."
    )


def _may_look(pid: int) -> bool:
    """Ranks are told by their environment, which the kernel shows to their user alone (proc_pid_environ(5))."""
    return not is_hidden(pid) and os.access(f"/proc/{pid}/environ", os.R_OK)


def _once(jobs: tuple[FoundJob, ...], found: Survey, *, as_json: bool) -> int:
    clock = SystemClock()
    with ThreadPoolExecutor(min(_SIDE_BY_SIDE, max(1, len(jobs)))) as pool:
        seen = list(pool.map(lambda job: glimpse(job, clock), jobs))
    if as_json:
        say_json({"jobs": seen, "unnumbered": found.unnumbered})
    else:
        for each in seen:
            _print(each)
    return max((_CODES.get(each.diagnosis.verdict, ExitCode.WARNING) for each in seen), default=ExitCode.UNKNOWN)


def _print(seen: Glimpse) -> None:
    console = page()
    found = seen.diagnosis
    console.print(shown(f"{seen.job}: {found.verdict} / {found.cause} ({found.certainty}), after {seen.seconds} s", style="bold"))
    console.print(shown(f"  {found.sentence}"))
    for title, lines in (("for", found.reasons_for), ("against", found.reasons_against), ("next", found.suggested)):
        for line in lines:
            console.print(shown(f"  {title + ':':<9}{line}"))
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("at")
    for rank, at in sorted(seen.at.items()):
        table.add_row(str(rank), shown(at))
    console.print(table)


def _spec(job: FoundJob, job_dir: Path | None, settings: dict[str, Any], *, record: bool) -> JobSpec:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", job.name)[:60] or "job"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    pid = job.launcher.pid if job.launcher else job.ranks[0].process.pid
    folder = make_job_dir(job_dir or settings["jobs_dir"] / f"watch-{name}-{stamp}-{pid}")
    say(f"rankpatrol: watching {job.name}, {len(job.ranks)} of {job.world_size} ranks here; job directory {folder}", err=True)
    return JobSpec(
        job=folder.name,
        job_dir=str(folder),
        command=(),
        policy="observe",
        patience_s=settings["patience"],
        checkpoints=None,
        started_unix_s=time.time(),
        probe=False,
        attached=True,
        record=record,
        metrics=settings["metrics"],
        metrics_textfile=str(settings["metrics_textfile"].absolute()) if settings["metrics_textfile"] else None,
    )


def _follow(wanted: Wanted, jobs: tuple[FoundJob, ...], spec_of: Callable[[FoundJob], JobSpec]) -> int:
    """Until the jobs are over, or we are told to leave."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    watching = Watching(wanted, spec_of, unblock)
    try:
        watching.take_in(jobs)
        if not watching.watches():
            raise BadInput("each of these jobs has a patrol already", help="It was started by `rankpatrol run`: rankpatrol status.")
        while watching.watches():
            if (heard := signal.sigtimedwait(_ENDING, 1.0)) is not None:
                _say_goodbye(signal.Signals(heard.si_signo), watching.job_dirs())
                break
            watching.round()
    finally:
        watching.leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ExitCode.OK


def _say_goodbye(heard: signal.Signals, job_dirs: tuple[str, ...]) -> None:
    """A watch may be ended at any time; what it wrote stays."""
    say(f"rankpatrol: the watch ends ({heard.name}); what was watched goes on, without patrol", err=True)
    for folder in job_dirs:
        say(f"  what was seen: rankpatrol why {shlex.quote(folder)}", err=True)
