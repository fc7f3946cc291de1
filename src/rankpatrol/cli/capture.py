"""`rankpatrol capture`: a sealed bundle now, without a verdict."""

import os
from pathlib import Path

import click

from rankpatrol.agent.on_request import Whom, whom_by_job, whom_by_pid
from rankpatrol.agent.on_request import capture as take
from rankpatrol.cli.jobs import run_dir_named
from rankpatrol.cli.paths import GivenPath, check_can_write
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import BadInput, ExitCode, UsageProblem
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import RankSample
from rankpatrol.launch.pauses import who_asks
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.system.clock import SystemClock


@click.command(short_help="Seal the evidence of a job now; nothing is stopped.")
@click.option(
    "--pid", type=click.IntRange(min=1), metavar="PID", help="A launcher or a rank; its children are captured with it.  [default: --job]"
)
@click.option("--job", metavar="JOB", help="A job that `rankpatrol run` started: its id, or its job directory.  [default: --pid]")
@click.option("--out", type=GivenPath(), metavar="FOLDER", required=True, help="Where the bundle goes; must not be there yet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def capture(pid: int | None, job: str | None, out: Path, *, as_json: bool) -> int:
    """Take and seal the evidence of a job as it is now: stacks, processes, logs, the machine. Nothing is stopped, nothing is ended.

    Exit code: 0 every rank has its stack, 1 some have not (the bundle says why), 65 there is nobody to capture, 77 nothing may be read.
    """
    if (pid is None) == (job is None):
        raise UsageProblem("whom to capture is not said", help="Give one of --pid PID and --job ID.")
    if os.path.lexists(out):
        raise BadInput(f"{out} is there already", help="Evidence is never overwritten: give another --out.")
    check_can_write(out, "--out")
    whom = whom_by_pid(pid) if pid is not None else _whom_by_job(job or "")
    sealed, snapshot = take(out.absolute(), whom, who_asks(), SystemClock())
    without = {sample.rank: sample.stack.reason for sample in snapshot.ranks if isinstance(sample.stack, Missing)}
    if as_json:
        ranks = [{"rank": sample.rank, "pid": sample.pid, "stack": sample.rank not in without} for sample in snapshot.ranks]
        say_json({"path": sealed.path, "job": sealed.job, "ranks": ranks, "without_stack": without})
    else:
        _print(out, snapshot.ranks, without)
    return ExitCode.WARNING if without else ExitCode.OK


def _print(out: Path, ranks: tuple[RankSample, ...], without: dict[int, str]) -> None:
    children = sum(len(sample.descendants) for sample in ranks)
    say(f"{out}: sealed, {say_count(len(ranks), 'rank')} and {say_count(children, 'process', 'processes')} below them")
    for rank, why in without.items():
        say(f"  rank {rank}: no stack: {why}")
    say(f"  look at it: {out / 'report.html'}, or rankpatrol bundle show {out}")


def _whom_by_job(job: str) -> Whom:
    run_dir = run_dir_named(job)
    spec = run_dir.read("job.json", JobSpec)
    if spec is None:
        raise BadInput(
            f"{run_dir.path / 'job.json'} is not a job of this rankpatrol's", help="Was it started by another version? --pid works."
        )
    return whom_by_job(spec, run_dir)
