"""`rankpatrol run`: start a training under patrol."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import click

from rankpatrol.agent.voice import release_terminal
from rankpatrol.cli.first_attempt import goes_on, newest_good_path
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.settings import config_option, setting_options, settled
from rankpatrol.cli.words import say
from rankpatrol.config.budget import BUDGET_NAMES, budget
from rankpatrol.core.errors import BadInput, NoPermission, UsageProblem
from rankpatrol.evidence.redact import redact_command
from rankpatrol.launch.nodes import Given, node_part, plain_name, restarts_in_place, which_restart
from rankpatrol.launch.outlived import retire
from rankpatrol.launch.parent import check_command, launch_environment, make_job_dir, run_job
from rankpatrol.launch.plain_command import is_plain
from rankpatrol.launch.rundir import Cluster, JobSpec, RunDir
from rankpatrol.launch.torchrun_words import past_the_shim


@click.command(short_help="Start a training under patrol.", context_settings={"allow_interspersed_args": False})
@click.option("--job-dir", type=GivenPath(), metavar="JOBDIR", help="Where events, logs and evidence go.  [default: JOBS-DIR/NAME-UTC]")
@setting_options(
    *("policy", "patience", "checkpoints", "max-restarts", *BUDGET_NAMES, "probe", "bind", "jobs-dir", "metrics", "metrics-textfile")
)
@config_option
@click.option(
    "--run-id",
    metavar="NAME",
    help="One name for the run on all nodes of a job; the job directory is called after it.  [default: Slurm's step, or --rdzv-id]",
)
@click.option(
    "--exchange",
    metavar="URL",
    envvar="RANKPATROL_EXCHANGE",
    help="Where the nodes of a job meet: nats://[TOKEN@]HOST:PORT of the first.  [default: as the job directory says]",
)
@click.option(
    "--resume",
    is_flag=True,
    help="The first attempt, too, goes on from the newest good checkpoint: for jobs that are started again from outside.",
)
@click.option("--record", is_flag=True, help="Keep what the judge saw, for `rankpatrol replay`: JOBDIR/recording.jsonl.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="CMD...")
def run(
    job_dir: Path | None,
    config: Path | None,
    record: bool,
    resume: bool,
    run_id: str | None,
    exchange: str | None,
    command: tuple[str, ...],
    **given: Any,
) -> int:
    """Start CMD (torchrun …, or any other command) under patrol, and end with its exit code.

    CMD's words are passed on as they are, but for {checkpoint}: each attempt gets the checkpoint to resume from there, the first
    one an empty word, unless Slurm has queued the job again, or with --resume. The same path is in the environment as
    RANKPATROL_RESUME_FROM. Shells, scripts and launchers get the word as it is, for the torchrun or shim that they start.

    \b
    rankpatrol run torchrun --nproc-per-node 4 train.py
    rankpatrol run --checkpoints ckpt/ torchrun --nproc-per-node 8 train.py --resume {checkpoint}
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    words = command[1:] if command[:1] == ("--",) else command
    if not words:
        raise UsageProblem("there is no command to run", help="Write it last: rankpatrol run torchrun --nproc-per-node 4 train.py")
    check_command(words)
    settings = settled(config, given)
    checkpoints: Path | None = settings["checkpoints"]
    _check_checkpoints(checkpoints, words)
    if resume and checkpoints is None:
        raise UsageProblem("--resume, but no checkpoints are known", help="Add --checkpoints DIR: where the training saves.")
    part = node_part(words, os.environ, Given(run_id=run_id, exchange=exchange))
    folder = make_job_dir(job_dir or settings["jobs_dir"] / _folder_name(words, run_id, part), part, which_restart(os.environ))
    run_dir = RunDir.create()
    extra = launch_environment(run_dir, recover=settings["policy"] != "observe", max_restarts=settings["max_restarts"])
    spec = JobSpec(
        job=folder.name,
        job_dir=str(folder),
        command=redact_command(words),
        policy=settings["policy"],
        patience_s=settings["patience"],
        checkpoints=str(checkpoints.absolute()) if checkpoints else None,
        started_unix_s=time.time(),
        probe=settings["probe"],
        bind=settings["bind"],
        record=record,
        cluster=part,
        metrics=settings["metrics"],
        metrics_textfile=str(settings["metrics_textfile"].absolute()) if settings["metrics_textfile"] else None,
        resumes=resume or bool(which_restart(os.environ)),
        resume_asked=resume,
        restarts_in_place=restarts_in_place(words, {**os.environ, **extra}),
        budget=budget(settings),
    )
    say(f"rankpatrol: job directory {folder}", err=True)
    _say_who_is_not_seen(words)
    try:
        return run_job(_filled(words, spec, extra), spec, extra, run_dir)
    finally:
        _give_terminal_back()
        if left := retire(run_dir):
            say(_say_left(left), err=True)


def _folder_name(command: tuple[str, ...], run_id: str | None, part: Cluster | None) -> str:
    """One that all nodes find by themselves, or that a user gave, or one that no other run has."""
    name = _job_name(command)
    if part is not None or run_id:
        return f"{name}-{plain_name(part.run if part else run_id or '')}"
    return f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"


def _check_checkpoints(directory: Path | None, words: tuple[str, ...]) -> None:
    """A directory that is not there yet will be made by the training; one that cannot be read now is said before it matters."""
    if directory is None:
        if any("{checkpoint}" in word for word in words):
            raise UsageProblem(
                "the command asks for {checkpoint}, but no checkpoints are known", help="Add --checkpoints DIR before the command."
            )
        return
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory} is a file", help="--checkpoints names the directory in which the training saves.")
    if directory.exists() and not os.access(directory, os.R_OK | os.X_OK):
        raise NoPermission(
            f"{directory} cannot be read", help="Nothing was started. Give yourself the right to read it, or leave --checkpoints out."
        )


def _say_who_is_not_seen(words: tuple[str, ...]) -> None:
    """Ranks that torchrun starts past the shim train as ever; who started them so should know that nobody looks."""
    past = past_the_shim(words, os.environ)
    if past is None:
        return
    ways = {
        "--run-path": "leave --run-path out",
        "--no-python": f"torchrun … --no-python rankpatrol shim -- {past.program} …",
    }
    how = next(way for flag, way in ways.items() if flag[2:] in past.by.lower().replace("_", "-"))
    say(f"rankpatrol: {past.by} has torchrun start the ranks without the shim: they are not watched. Instead: {how}", err=True)


def _filled(command: tuple[str, ...], spec: JobSpec, extra: dict[str, str]) -> tuple[str, ...]:
    """A plain `python train.py` has one attempt and no shim: it is told here what shims tell their ranks, which `extra` gets as well."""
    if spec.checkpoints is None or not is_plain(command):
        return command
    known = newest_good_path(Path(spec.checkpoints)) if goes_on(asked=spec.resume_asked, environment=os.environ) else ""
    extra["RANKPATROL_RESUME_FROM"] = known
    return tuple(word.replace("{checkpoint}", known) for word in command)


def _say_left(pids: tuple[int, ...]) -> str:
    named = ", ".join(map(str, pids[:8])) + (" …" if len(pids) > 8 else "")
    count = "one process" if len(pids) == 1 else f"{len(pids)} processes"
    return f"rankpatrol: the job is over, and {count} of its ranks not: {named}. What they hold is told by: rankpatrol orphans"


def _job_name(command: tuple[str, ...]) -> str:
    """The script's name, else the command's: what people call the job."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9_.-]", "_", Path(script).stem) or "job"


def _give_terminal_back() -> None:
    """The agent draws its live line and may have been killed before it could undo that."""
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        release_terminal(sys.stderr.write, os.get_terminal_size(sys.stderr.fileno()).lines)
        sys.stderr.flush()
