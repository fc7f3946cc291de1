"""`rankpatrol end`: evidence, then the scheduler."""

import os
import re
import time
from pathlib import Path

import click

from rankpatrol.act.execute import StepReport, Tell
from rankpatrol.act.job_steps import RequeueJob, in_words
from rankpatrol.act.plan import AttemptStep
from rankpatrol.agent.ending import Case, Wish, advice_of, carry_out, plan_of, see, target_of
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.errors import BadInput, ExitCode, UsageProblem
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.evidence.bundle import SealedBundle
from rankpatrol.launch.parent import make_job_dir
from rankpatrol.launch.pauses import machine_switch, read_pause
from rankpatrol.schedulers.kubernetes_words import checked_kubernetes_node, is_kubernetes_id, release_command
from rankpatrol.schedulers.slurm_words import checked_node, why_waiting
from rankpatrol.system.clock import SystemClock


@click.command(short_help="End or requeue a job by its id, evidence first.")
@click.option("--job", required=True, metavar="JOB", help="A job directory, its name, a Slurm job id, or k8s:NAMESPACE/KIND/NAME.")
@click.option("--requeue", is_flag=True, help="Have it start again under the same id.")
@click.option(
    "--checkpoints",
    type=GivenPath(),
    metavar="FOLDER",
    help="With --requeue: it starts only where the newest one is good.  [default: not looked at]",
)
@click.option(
    "--avoid",
    "avoid",
    multiple=True,
    metavar="NODE",
    help="With --requeue: not on this node; may be repeated.  [default: the culprits' nodes]",
)
@click.option("--keep-suspects", is_flag=True, help="With --requeue: the culprits' nodes are not left out.")
@click.option("--drain", is_flag=True, help="Drain the nodes for all jobs, instead of excluding them from this one.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; so it is without --yes.")
@click.option("--yes", is_flag=True, help="Do it.")
@click.option("--out", type=GivenPath(), metavar="FOLDER", help="Where the evidence goes.  [default: rankpatrol-runs/end-JOB-UTC]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def end(
    job: str,
    requeue: bool,
    checkpoints: Path | None,
    avoid: tuple[str, ...],
    keep_suspects: bool,
    drain: bool,
    dry_run: bool,
    yes: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """End a job by its id, or requeue it: the evidence is sealed first, then its own scheduler does it, and each step is read back.

    \b
    rankpatrol end --job 8123                          what would be done
    rankpatrol end --job 8123 --yes                    evidence, then scancel
    rankpatrol end --job 8123 --requeue --yes          evidence, then again, without the culprit's node
    rankpatrol end --job k8s:team/job/train --yes      evidence, then the Job is deleted

    Exit code: 0 done (or a dry run), 2 a step was not done, 3 the scheduler does not answer or know the job, 65 it does not run.
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    if not requeue and (checkpoints or avoid or keep_suspects or drain):
        raise UsageProblem("these options are for --requeue", help="Add --requeue, or leave --checkpoints, --avoid and --drain out.")
    if checkpoints and not checkpoints.is_dir():
        raise BadInput(
            f"{checkpoints} is no folder that can be seen from here, so no checkpoint in it can be confirmed",
            help="Nothing was touched. Name the folder as it is on this machine, or leave --checkpoints out where nothing was saved yet.",
        )
    clock = SystemClock()
    check_node = checked_kubernetes_node if is_kubernetes_id(job) else checked_node
    target = target_of(job, clock)
    sight = see(target, clock)
    wish = Wish(
        requeue=requeue,
        checkpoints=str(checkpoints.absolute()) if checkpoints else None,
        avoid=tuple(check_node(node) for node in avoid),
        avoid_suspects=not keep_suspects,
        drain=drain,
    )
    case = Case(target=target, sight=sight, plan=plan_of(target, sight, wish))
    if not as_json:
        _print_plan(case)
    if dry_run or not yes:
        _finish(case, [], None, as_json=as_json)
        if not as_json:
            say("nothing was touched" if yes else "nothing was touched: add --yes to have it done")
        return ExitCode.OK
    pause = read_pause(machine_switch(), "machine")
    if pause is not None:
        raise BadInput(f"actions are paused by {pause.by}, so nothing was touched", help="`rankpatrol unpause`, then again.")
    steps: list[StepReport] = []

    def tell_of(bundle: SealedBundle) -> Tell:
        if not as_json:
            say(f"evidence sealed: {bundle.path}")
        return lambda report: _tell(report, steps, quiet=as_json)

    folder = make_job_dir(out or _default_folder(target.status))
    try:
        done = carry_out(case, folder, clock, tell_of)
    except KeyboardInterrupt:
        say(
            f"interrupted after {len(steps)} of {len(case.plan.steps)} steps: {_say(target.scheduler.describe(target.status.job))}",
            err=True,
        )
        return 130
    _finish(case, steps, done, as_json=as_json)
    return ExitCode.OK if done else ExitCode.CRITICAL


def _tell(report: StepReport, steps: list[StepReport], *, quiet: bool) -> None:
    if report.done is None:
        return
    steps.append(report)
    if not quiet:
        outcome = "done" if report.done else f"NOT DONE: {report.why}"
        say(f"  {report.what} ({report.target}): {outcome}")


def _print_plan(case: Case) -> None:
    status, sight, found = case.target.status, case.sight, case.sight.diagnosis
    where = ", ".join(status.nodes) or "nodes that are not known"
    say(f"job {status.job}: {status.said}, on {where}, restart {status.restarts}")
    say(f"seen: {found.verdict} / {found.cause} ({found.certainty}): {found.sentence}")
    if not sight.snapshot.ranks:
        say("not seen from here: any rank of it")
    elif sight.absent:
        say(f"not seen from here: {len(sight.absent)} of {len(sight.absent) + len(sight.snapshot.ranks)} ranks")
    if advice := advice_of(case.target, sight):
        say(advice)
    say("plan:")
    for step in case.plan.steps:
        if not isinstance(step, AttemptStep):
            what, whom = in_words(step)
            say(f"  {what} ({whom})")
    if any(isinstance(step, RequeueJob) for step in case.plan.steps) and status.may_requeue is False:
        say("this will be refused: the job was submitted so that it may not be queued again")


def _finish(case: Case, steps: list[StepReport], done: bool | None, *, as_json: bool) -> None:
    target = case.target
    now = target.status if done is None else target.scheduler.describe(target.status.job)
    if as_json:
        document = {
            "job": target.status.job,
            "seen": target.status,
            "diagnosis": case.sight.diagnosis,
            "plan": case.plan,
            "advice": advice_of(target, case.sight),
            "steps": steps,
            "bundle": steps[0].bundle if steps else None,
            "done": done,
            "now": now,
        }
        say_json(document)
    elif done is not None:
        say(_say(now))


def _say(now: JobStatus) -> str:
    """What has become of it."""
    if now.held:
        how = release_command(now.job) if is_kubernetes_id(now.job) else f"scontrol release {now.job}"
        return f"job {now.job} is held and starts when it is released: {how}"
    if now.state is JobState.PENDING and not is_kubernetes_id(now.job):
        at = f", at the earliest {time.strftime('%H:%M:%S', time.localtime(now.expected_unix_s))}" if now.expected_unix_s else ""
        return f"job {now.job} is queued: {why_waiting(now.reason)}{at}"
    return f"job {now.job}: {now.said or now.state}{f' ({now.reason})' if now.reason else ''}"


def _default_folder(status: JobStatus) -> Path:
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(status.job).name)[:60]
    return Path("rankpatrol-runs") / f"end-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
