"""`rankpatrol run`: start a training under patrol."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import click

from rankpatrol.agent.voice import release_terminal
from rankpatrol.cli.settings import config_option, setting_options
from rankpatrol.config.budget import BUDGET_NAMES, budget
from rankpatrol.config.resolve import Sources, resolve, strangers, values
from rankpatrol.core.errors import BadInput, NoPermission, UsageProblem
from rankpatrol.launch.parent import check_command, launch_environment, make_job_dir, run_job
from rankpatrol.launch.rundir import JobSpec, RunDir


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--job-dir", type=click.Path(path_type=Path), help="Where events, logs and evidence go.  [default: JOBS-DIR/NAME-UTC]")
@setting_options("policy", "patience", "checkpoints", "max-restarts", *BUDGET_NAMES, "probe", "bind", "jobs-dir")
@config_option
@click.option("--record", is_flag=True, help="Keep what the judge saw, for `rankpatrol replay`: JOBDIR/recording.jsonl.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(job_dir: Path | None, config: Path | None, record: bool, command: tuple[str, ...], **given: Any) -> int:
    """Start CMD (torchrun …, or any other command) under patrol, and end with its exit code.

    CMD's words are passed on as they are, but for {checkpoint}: each attempt gets the checkpoint to resume from there, the first
    one an empty word. The same path is in the environment as RANKPATROL_RESUME_FROM.

    \b
    rankpatrol run torchrun --nproc-per-node 4 train.py
    rankpatrol run --checkpoints ckpt/ torchrun --nproc-per-node 8 train.py --resume {checkpoint}
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    words = command[1:] if command[0] == "--" else command
    if not words:
        raise UsageProblem("there is no command to run", help="Write it last: rankpatrol run torchrun --nproc-per-node 4 train.py")
    check_command(words)
    _check_variables()
    settings = values(resolve(Sources.here(config), {name.replace("_", "-"): value for name, value in given.items()}))
    checkpoints: Path | None = settings["checkpoints"]
    _check_checkpoints(checkpoints, words)
    name = _job_name(words)
    folder = make_job_dir(job_dir or settings["jobs_dir"] / f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}")
    spec = JobSpec(
        job=folder.name,
        job_dir=str(folder),
        command=words,
        policy=settings["policy"],
        patience_s=settings["patience"],
        checkpoints=str(checkpoints.absolute()) if checkpoints else None,
        started_unix_s=time.time(),
        probe=settings["probe"],
        bind=settings["bind"],
        record=record,
        budget=budget(settings),
    )
    run_dir = RunDir.create()
    click.echo(f"rankpatrol: job directory {folder}", err=True)
    extra = launch_environment(run_dir, recover=spec.policy != "observe", max_restarts=settings["max_restarts"])
    try:
        return run_job(_without_placeholder(words), spec, extra, run_dir)
    finally:
        run_dir.remove()
        _give_terminal_back()


def _check_variables() -> None:
    if unknown := strangers(os.environ):
        said = ", ".join(f"{name} (did you mean {meant}?)" if meant else name for name, meant in unknown.items())
        raise UsageProblem(f"no setting is called {said}", help="Put it right, or unset it: what was meant by it would not be done.")


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


def _without_placeholder(command: tuple[str, ...]) -> tuple[str, ...]:
    """A plain `python train.py` has one attempt and no shim to fill in {checkpoint}; whatever starts torchrun passes it on to the shims."""
    if not Path(command[0]).name.startswith("python") or any(word.startswith("torch.distributed") for word in command):
        return command
    return tuple(word.replace("{checkpoint}", "") for word in command)


def _job_name(command: tuple[str, ...]) -> str:
    """The script's name, else the command's: what people call the job."""
    script = next((word for word in command if word.endswith(".py")), command[0])
    return re.sub(r"[^A-Za-z0-9_.-]", "_", Path(script).stem) or "job"


def _give_terminal_back() -> None:
    """The agent draws its live line and may have been killed before it could undo that."""
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        release_terminal(sys.stderr.write, os.get_terminal_size(sys.stderr.fileno()).lines)
        sys.stderr.flush()
