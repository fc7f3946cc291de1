"""`rankpatrol checkpoints`: are they whole, and which one to resume from."""

import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from rankpatrol.checkpoints.newest import judge, list_checkpoints, newest_good
from rankpatrol.checkpoints.report import CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.verifier import Verifier
from rankpatrol.core.errors import ExitCode

_SEVERITY = (ExitCode.OK, ExitCode.WARNING, ExitCode.UNKNOWN, ExitCode.CRITICAL)


@click.group()
def checkpoints() -> None:
    """Check checkpoints without loading them."""


@checkpoints.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify(paths: tuple[Path, ...], as_json: bool) -> None:
    """Check each file, and each checkpoint in a directory, byte by byte; nothing in them is run.

    Exits with 0 when all are good, 1 when a directory has good and bad ones, 2 when a named file is bad or a directory has no good one,
    3 when it cannot be told.
    """
    verifier = Verifier()
    reports: list[CheckpointReport] = []
    codes: list[ExitCode] = []
    for path in paths:
        if path.is_dir():
            listing = list_checkpoints(path)
            found = [*listing.unreadable, *(report for candidate in listing.candidates for report in judge(candidate, verifier))]
            codes.append(_directory_code(found))
        else:
            found = [verifier.verify(path)]
            codes.append(_file_code(found[0]))
        reports += found
        if not as_json:
            _print_reports(found)
            if not found:
                click.echo(f"{click.format_filename(path)} holds no checkpoint files", err=True)
    if as_json:
        _print_json({"reports": reports})
    sys.exit(max(codes, key=_SEVERITY.index))


@checkpoints.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def latest(directory: Path, as_json: bool) -> None:
    """Print the path of the newest good checkpoint; newer ones that are not good go to stderr, with why.

    Exits with 0 when the newest is good, 1 when newer ones were rejected, 2 when none is good.
    """
    selection = newest_good(directory, Verifier())
    if as_json:
        _print_json(selection)
    else:
        _print_selection(selection)
    sys.exit(_selection_code(selection))


def _file_code(report: CheckpointReport) -> ExitCode:
    match report.verdict:
        case CheckpointVerdict.OK:
            return ExitCode.OK
        case CheckpointVerdict.UNKNOWN:
            return ExitCode.UNKNOWN
        case _:
            return ExitCode.CRITICAL


def _directory_code(reports: list[CheckpointReport]) -> ExitCode:
    good = sum(report.verdict is CheckpointVerdict.OK for report in reports)
    if not good:
        return ExitCode.CRITICAL
    return ExitCode.OK if good == len(reports) else ExitCode.WARNING


def _selection_code(selection: Selection) -> ExitCode:
    if selection.newest_good is None:
        return ExitCode.CRITICAL
    return ExitCode.WARNING if selection.rejected else ExitCode.OK


def _print_reports(reports: Iterable[CheckpointReport], *, err: bool = False) -> None:
    for report in reports:
        step = "" if report.step is None else f" (step {report.step})"
        click.echo(f"{report.verdict}: {report.path}{step}\n  {report.sentence}", err=err)


def _print_selection(selection: Selection) -> None:
    _print_reports(selection.rejected, err=True)
    if selection.newest_good is None:
        looked = f"none of {len(selection.rejected)} files is good" if selection.rejected else "it holds no checkpoint files"
        click.echo(f"no good checkpoint in {selection.directory}: {looked}", err=True)
    else:
        click.echo(selection.newest_good.path)


def _print_json(document: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
