"""`rankpatrol diagnose`: what logs, bundles and pasted texts say of a job."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.intake.diagnose import Answer, Watch, diagnose

_EXITS = {
    "healthy": ExitCode.OK,
    "ok": ExitCode.OK,
    "benign_wait": ExitCode.OK,
    "not_orphan": ExitCode.OK,
    "slow": ExitCode.WARNING,
    "shutdown": ExitCode.WARNING,
    "undetermined": ExitCode.UNKNOWN,
}
_ALERTS = frozenset({"loss_nan"})


def _exit_code(found: Diagnosis) -> int:
    """Healthy steps whose result is worthless are no success."""
    if found.verdict == "healthy" and found.cause in _ALERTS:
        return ExitCode.WARNING
    return _EXITS.get(found.verdict, ExitCode.CRITICAL)


@click.command("diagnose", short_help="Say what logs, bundles and pasted texts tell of a job.")
@click.argument("paths", nargs=-1, type=GivenPath(as_type=str), metavar="PATH...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def diagnose_command(paths: tuple[str, ...], *, as_json: bool) -> int:
    """Say what each PATH tells of a job: a sealed bundle, a log, a folder of logs, or - for standard input.

    Exit code: 0 healthy or a wait that ends by itself, 1 slow, ended in order, or a loss that is no number, 2 hang or crash,
    3 not to be decided, 65 nothing readable.
    """
    if not paths:
        raise UsageProblem("no PATH was given", help="Give a log, a folder of logs or a bundle; `-` reads standard input.")
    with _bar() as watch:
        answer = diagnose(paths, watch)
    if as_json:
        say_json(answer.diagnosis, indent=2)
    else:
        _print(answer)
    for reason in answer.missing[:5]:
        say(f"rankpatrol: not read: {reason}", err=True)
    if len(answer.missing) > 5:
        say(f"rankpatrol: and {len(answer.missing) - 5} more could not be read", err=True)
    return _exit_code(answer.diagnosis)


@contextmanager
def _bar() -> Iterator[Watch]:
    """Shown after a moment, on a terminal, beside the answer's own stream; gone when the answer comes."""
    console = Console(stderr=True)
    if not console.is_terminal or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    columns = (SpinnerColumn(), TextColumn("read {task.completed:,.0f} MB"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("read", total=None)
        yield lambda count: progress.advance(task, count / 1e6)


def _print(answer: Answer) -> None:
    diagnosis = answer.diagnosis
    console = Console(soft_wrap=True, highlight=False)
    console.print(shown(f"{diagnosis.verdict} / {diagnosis.cause} ({diagnosis.certainty}): {diagnosis.sentence}", style="bold"))
    for title, lines in _paragraphs(diagnosis):
        for at, line in enumerate(lines):
            console.print(shown(f"  {title if at == 0 else '':9}{line}"))


def _paragraphs(diagnosis: Diagnosis) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("for:", diagnosis.reasons_for), ("against:", diagnosis.reasons_against), ("do next:", diagnosis.suggested)
