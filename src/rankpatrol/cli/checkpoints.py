"""`rankpatrol checkpoints`: are they whole, which one to resume from, and pointers put right."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from rankpatrol.checkpoints.ledger import Ledger
from rankpatrol.checkpoints.newest import as_candidate, judge, list_checkpoints, newest_good
from rankpatrol.checkpoints.pace import Pace
from rankpatrol.checkpoints.pointers import left_alone, put_right, repairs, wrong_pointers
from rankpatrol.checkpoints.quarantine import NotQuarantined, Quarantine, condemn, plan_quarantine, quarantine
from rankpatrol.checkpoints.report import STILL_WRITING_S, CheckpointReport, CheckpointVerdict, Selection
from rankpatrol.checkpoints.verifier import Closeness, Verifier
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import plain, say, say_json
from rankpatrol.core.counts import say_count
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.system.state_dir import state_dir

_SEVERITY = (ExitCode.OK, ExitCode.WARNING, ExitCode.UNKNOWN, ExitCode.CRITICAL)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG])B?(?:/s)?", re.IGNORECASE)
_POWERS: Final = {"K": 1e3, "M": 1e6, "G": 1e9}


class RateLimit(click.ParamType[float]):
    """Bytes a second, such as `500M`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _RATE.fullmatch(str(value))
        if match is None or not float(match[1]):
            raise UsageProblem(f"{value!r} is not a rate", help="Write bytes a second with their unit, such as 500M or 1.5G.")
        return float(match[1]) * _POWERS[match[2].upper()]


def _reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """How files are read, for every command that reads them."""
    for option in (
        click.option(
            "--ledger", type=GivenPath(), metavar="FILE", help="Where earlier looks are remembered.  [default: in the state directory]"
        ),
        click.option(
            "--most-per-second",
            "most_bytes_s",
            type=RateLimit(),
            metavar="RATE",
            help="Read no more bytes a second than this, such as 500M.  [default: no limit]",
        ),
        click.option(
            "--at-once", type=click.IntRange(1, 64), metavar="N", help="How many files are read at once.  [default: one a core, 4 at most]"
        ),
        click.option("--again", is_flag=True, help="Read again what is known, and compare it with the first look."),
        click.option("--structure", is_flag=True, help="Places and lengths alone, no content: fast."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
    ):
        command = option(command)
    return command


@click.group()
def checkpoints() -> None:
    """Check checkpoints without loading them."""


@checkpoints.command(short_help="Check files and folders byte by byte.")
@click.argument("paths", nargs=-1, required=True, type=GivenPath(), metavar="PATH...")
@click.option("--numbers", is_flag=True, help="Search for NaN, infinities and all zeros as well (needs numpy).")
@_reading_options
def verify(
    paths: tuple[Path, ...],
    numbers: bool,
    as_json: bool,
    structure: bool,
    again: bool,
    at_once: int | None,
    most_bytes_s: float | None,
    ledger: Path | None,
) -> None:
    """Check each file, and each checkpoint in a directory, byte by byte; nothing in them is run.

    Exit code: 0 when all are good, 1 when a directory has good and bad ones, 2 when a named file is bad or a directory has no good one,
    3 when it cannot be told.
    """
    reports: list[CheckpointReport] = []
    codes: list[ExitCode] = []
    closeness = Closeness(content=not structure, numbers=numbers, again=again)
    with _reading(closeness, ledger, most_bytes_s) as verifier:
        for path in paths:
            found, code = _verified(path, verifier, at_once or _cores())
            reports += found
            codes.append(code)
            if not as_json:
                _print_reports(found)
                if not found:
                    say(f"{click.format_filename(path)} holds no checkpoint files", err=True)
    if as_json:
        _print_json({"reports": reports})
    sys.exit(max(codes, key=_SEVERITY.index))


@checkpoints.command(short_help="Print the path of the newest good checkpoint.")
@click.argument("directory", type=GivenPath(), metavar="FOLDER")
@_reading_options
def latest(
    directory: Path,
    as_json: bool,
    structure: bool,
    again: bool,
    at_once: int | None,
    most_bytes_s: float | None,
    ledger: Path | None,
) -> None:
    """Print the path of the newest good checkpoint; newer ones that are not good go to stderr, with why.

    Exit code: 0 when the newest is good, 1 when newer ones were rejected or a pointer names another one, 2 when none is good, 3 when
    that cannot be told.
    """
    with _reading(Closeness(content=not structure, again=again), ledger, most_bytes_s) as verifier:
        selection = newest_good(directory, verifier, at_once=at_once or _cores())
    if as_json:
        _print_json(selection)
    else:
        _print_selection(selection)
    sys.exit(_selection_code(selection))


@checkpoints.command(short_help="Make pointers name the newest good checkpoint.")
@click.argument("directory", type=GivenPath(), metavar="FOLDER")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--quarantine", "with_quarantine", is_flag=True, help="Also rename bad newer checkpoints into .quarantined; needs --yes.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@_reading_options
def repair(
    directory: Path,
    dry_run: bool,
    with_quarantine: bool,
    yes: bool,
    as_json: bool,
    structure: bool,
    again: bool,
    at_once: int | None,
    most_bytes_s: float | None,
    ledger: Path | None,
) -> None:
    """Make pointers (`latest`, `latest_checkpointed_iteration.txt`, links) name the newest good checkpoint; a copy of each is kept.

    Exit code: 0 when all is right now, 1 when something is left to do, 2 when no checkpoint is good, 3 when that cannot be told.
    """
    with _reading(Closeness(content=not structure, again=again), ledger, most_bytes_s) as verifier:
        selection = newest_good(directory, verifier, at_once=at_once or _cores())
        now_unix_s = verifier.now_unix_s()
    if selection.newest_good is None:
        _print_reports(selection.rejected, err=True)
        say(f"nothing was changed: no checkpoint in {click.format_filename(directory)} is good", err=True)
        sys.exit(_none_good(selection.rejected))
    planned = repairs(directory, selection, now_unix_s)
    for one in planned:
        if not dry_run:
            put_right(one)
        done = "would make" if dry_run else "made"
        _say(as_json, f"{done} {one.pointer} say {one.becomes} (it said {one.was.strip()}); kept as {one.kept_as}")
    renames = plan_quarantine(selection) if with_quarantine else ()
    renamed = [_set_aside(bad, selection, now_unix_s, as_json=as_json) for bad in renames] if yes and not dry_run else []
    if not renamed:
        for bad in renames:
            _say(as_json, f"would rename {bad.path} to {bad.becomes}: {bad.why}{'' if yes or dry_run else ' (give --yes to do it)'}")
    wrong = wrong_pointers(directory, selection, now_unix_s)
    if as_json:
        done_so = [path for path in renamed if path is not None]
        told = {"newest_good": selection.newest_good.path, "repaired": planned, "quarantined": done_so}
        _print_json({**told, "dry_run": dry_run, "left": wrong})
    else:
        _print_reports(wrong, err=True)
        for why in left_alone(directory, selection, now_unix_s):
            say(why, err=True)
        if not planned and not renames:
            say("no pointer needed a repair" if not wrong else "no pointer could be repaired", err=bool(wrong))
    left = len(renames) - sum(path is not None for path in renamed)
    sys.exit(ExitCode.WARNING if wrong or left else ExitCode.OK)


def _set_aside(bad: Quarantine, selection: Selection, now_unix_s: float, *, as_json: bool) -> str | None:
    """Where a bad checkpoint went, or None where it was left, which is said."""
    report = next(report for report in selection.rejected if report.sentence == bad.why)
    try:
        proof = condemn(report, bad, unchanged_for_s=STILL_WRITING_S, now_unix_s=now_unix_s)
        target = str(quarantine(bad, proof))
    except NotQuarantined as problem:
        say(f"{problem}. {problem.help}", err=True)
        return None
    _say(as_json, f"renamed {bad.path} to {target}: {bad.why}")
    return target


@contextmanager
def _reading(closeness: Closeness, ledger: Path | None, most_bytes_s: float | None) -> Iterator[Verifier]:
    """A verifier that shows how much it has read on a terminal, and whose ledger is kept when it is done."""
    kept = Ledger(ledger or _own_ledger())
    with _progress() as told:
        yield Verifier(ledger=kept, closeness=closeness, pace=Pace(most_bytes_s, told))
    try:
        kept.save()
    except OSError as problem:
        say(f"what was found could not be remembered: {problem.strerror} ({ledger or _own_ledger()})", err=True)


@contextmanager
def _progress() -> Iterator[Callable[[int], None] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # ruff: ignore[PLC0415] - takes 40 ms, and is for terminals alone
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TransferSpeedColumn  # ruff: ignore[PLC0415] - see above

    columns = (SpinnerColumn(), "read", DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("read", total=None)
        yield lambda count: shown.advance(task, count)


def _own_ledger() -> Path | None:
    """The user's own, in the state directory; None for a user without a home."""
    try:
        return state_dir() / "checkpoints.json"
    except RuntimeError:
        return None


def _cores() -> int:
    return min(4, len(os.sched_getaffinity(0)))


def _verified(path: Path, verifier: Verifier, at_once: int) -> tuple[list[CheckpointReport], ExitCode]:
    if not path.is_dir():
        report = verifier.verify(path)
        return [report], _file_code(report)
    if (candidate := as_candidate(path)) is not None:
        found = judge(candidate, verifier, at_once=at_once)
        return found, max((_file_code(report) for report in found), key=_SEVERITY.index)
    listing = list_checkpoints(path)
    found = list(listing.unreadable)
    for position, candidate in enumerate(listing.candidates):
        found += judge(candidate, verifier, at_once=at_once, older=listing.candidates[position + 1 :])
    pointers = _pointers(path, found, verifier)
    return [*found, *pointers], _directory_code(found, pointers)


def _pointers(directory: Path, found: list[CheckpointReport], verifier: Verifier) -> list[CheckpointReport]:
    """The wrong pointers of a shelf, all of whose checkpoints are judged already, newest first."""
    good = [report for report in found if report.verdict is CheckpointVerdict.OK]
    selection = Selection(
        directory=str(directory),
        newest_good=good[0] if good else None,
        rejected=tuple(report for report in found if report.verdict is not CheckpointVerdict.OK),
        older=tuple(report.path for report in good[1:]),
    )
    return wrong_pointers(directory, selection, verifier.now_unix_s())


def _file_code(report: CheckpointReport) -> ExitCode:
    match report.verdict:
        case CheckpointVerdict.OK:
            return ExitCode.OK
        case CheckpointVerdict.UNKNOWN:
            return ExitCode.UNKNOWN
        case _:
            return ExitCode.CRITICAL


def _directory_code(reports: list[CheckpointReport], pointers: list[CheckpointReport]) -> ExitCode:
    good = sum(report.verdict is CheckpointVerdict.OK for report in reports)
    if not good:
        return _none_good(reports)
    return ExitCode.OK if good == len(reports) and not pointers else ExitCode.WARNING


def _selection_code(selection: Selection) -> ExitCode:
    if selection.newest_good is None:
        return _none_good(selection.rejected)
    return ExitCode.WARNING if selection.rejected or selection.pointers else ExitCode.OK


def _none_good(reports: Sequence[CheckpointReport]) -> ExitCode:
    """Where none could be judged, as on a folder of someone else's, it is not known that none is good."""
    untold = bool(reports) and all(report.verdict is CheckpointVerdict.UNKNOWN for report in reports)
    return ExitCode.UNKNOWN if untold else ExitCode.CRITICAL


def _print_reports(reports: Iterable[CheckpointReport], *, err: bool = False) -> None:
    for report in reports:
        step = "" if report.step is None else f" (step {report.step})"
        say(f"{report.verdict}: {report.path}{step}\n  {report.sentence}", err=err)
        for sentence in report.more:
            say(f"  {sentence}", err=err)


def _print_selection(selection: Selection) -> None:
    _print_reports((*selection.rejected, *selection.pointers), err=True)
    if selection.newest_good is None:
        looked = f"none of {say_count(len(selection.rejected), 'file')} is good" if selection.rejected else "it holds no checkpoint files"
        say(f"no good checkpoint in {selection.directory}: {looked}", err=True)
        return
    if selection.lost_steps:
        are = "is" if selection.lost_steps == 1 else "are"
        say(f"{say_count(selection.lost_steps, 'step')} {are} lost to the newer ones that are not good", err=True)
    # A program gets the very name; a person's terminal is not steered by it.
    path = selection.newest_good.path
    click.echo(plain(path) if sys.stdout.isatty() else path)


def _say(as_json: bool, what: str) -> None:
    if not as_json:
        say(what)


def _print_json(document: object) -> None:
    say_json(document, indent=2)
