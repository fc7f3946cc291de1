"""`rankpatrol doctor`: what works here, what is missing, what is touched."""

import os
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from rankpatrol.agent.roster import current_attempt
from rankpatrol.agent.within import marks_of
from rankpatrol.cli.jobs import find_job, run_dir_of
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say_json
from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing
from rankpatrol.doctor.checks import examine
from rankpatrol.doctor.rows import Level, Row, exit_code
from rankpatrol.doctor.subject import JobFacts, Subject, training_python
from rankpatrol.doctor.touched import TOUCHED
from rankpatrol.launch.rundir import JobSpec
from rankpatrol.launch.shim.rank_environment import environment_of

_MARKS = {
    Level.OK: ("ok", "green"),
    Level.HINT: ("hint", "cyan"),
    Level.UNKNOWN: ("?", "yellow"),
    Level.WARNING: ("!", "yellow"),
    Level.FORBIDDEN: ("forbidden", "red"),
    Level.CRITICAL: ("bad", "bold red"),
}


@click.command(short_help="Say what works here, what is missing, what is touched.")
@click.argument("job_dir", type=GivenPath(), required=False, metavar="[JOBDIR]")
@click.option(
    "--python", type=GivenPath(as_type=str), metavar="FILE", help="The training's interpreter.  [default: torchrun's, or the job's own]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(job_dir: Path | None, python: str | None, *, as_json: bool) -> int:
    """Say what works here, what is missing and what is touched, each with the fix or the switch; of the job in JOBDIR too.

    Exit code: 0 all is well (hints aside), 1 a warning, 2 something does not work, 3 something is not known, 77 permission is missing.
    """
    subject = _subject(job_dir, python)
    rows = examine(subject)
    if as_json:
        say_json({"exit_code": exit_code(rows), "rows": rows, "touched": TOUCHED}, indent=2)
    else:
        _print(rows)
    return exit_code(rows)


def _subject(job_dir: Path | None, python: str | None) -> Subject:
    job, environment = None, dict(os.environ)
    found, by = training_python()
    if job_dir is not None:
        job = _job(job_dir)
        for pid in job.pids[:1]:
            environment = environment_of(pid) or environment
            found, by = _interpreter_of(pid), "the job's own"
    if python is not None:
        found, by = python, "--python"
    return Subject(python=found, python_by=by, environment=_without_probe(environment), job=job)


def _job(job_dir: Path) -> JobFacts:
    run_dir = run_dir_of(find_job(job_dir))
    spec = run_dir.read("job.json", JobSpec)
    if spec is None:
        raise BadInput(f"{run_dir.path / 'job.json'} is not a job of this rankpatrol's", help="Was it started by another version?")
    attempt = current_attempt(run_dir)
    places = () if attempt is None else attempt.places
    return JobFacts(spec=spec, marks={place.rank: marks_of(place) for place in places}, pids=tuple(place.pid for place in places))


def _interpreter_of(pid: int) -> str | Missing:
    """A virtual environment is named by argv[0] alone: /proc/PID/exe is what its link leads to."""
    try:
        word = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0].decode(errors="surrogateescape")
        exe = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError as problem:
        return Missing(f"the interpreter of process {pid} cannot be read: {problem.strerror}")
    return word if os.path.sep in word and Path(word).exists() else exe


def _without_probe(environment: dict[str, str]) -> dict[str, str]:
    """A rank's environment names its own marks: a child of ours must not write there."""
    return {name: value for name, value in environment.items() if not name.startswith(("RANKPATROL_MARKS", "RANKPATROL_PROBE"))}


def _print(rows: tuple[Row, ...]) -> None:
    console = Console(soft_wrap=True)
    for row in rows:
        mark, style = _MARKS[row.level]
        console.print(Text.assemble((f"{mark:<10}", style), shown(f"{row.name:<30}{row.found}")))
        if row.fix:
            console.print(shown(f"{'':<40}→ {row.fix}", style="dim"))
    console.print()
    console.print(shown("Touched of a training under `rankpatrol run`:", style="bold"))
    for touch in TOUCHED:
        console.print(shown(f"  {touch.what}"))
        console.print(shown(f"    off by: {touch.switch}"))
