"""`rankpatrol bundle`: is this evidence whole, and what does it say."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rankpatrol.cli.jobs import newest_bundle
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say_json
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import ExitCode
from rankpatrol.core.records import Missing
from rankpatrol.evidence.manifest import Manifest, Verification, verify
from rankpatrol.evidence.reading import PartUnreadable, load_diagnosis

# An absence that says nothing about the evidence: nobody asked for it.
_EXPECTED_ABSENT = frozenset({"native", "flight_recorder"})

_path = click.argument("path", type=GivenPath(), required=False, metavar="[PATH]")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def bundle() -> None:
    """Check and read sealed bundles of evidence."""


@bundle.command("verify", short_help="Compare every file with the manifest.")
@_path
@_json
@click.pass_context
def verify_command(context: click.Context, path: Path | None, *, as_json: bool) -> None:
    """Compare every file of the bundle at PATH with its manifest (of the newest job's last one, unless PATH is given).

    Exit code: 0 whole, 2 changed or incomplete, 65 not a bundle.
    """
    path = path or newest_bundle()
    seen = verify(path)
    if as_json:
        _print_json({"path": seen.path, "ok": seen.ok, "files_checked": seen.files_checked, "problems": seen.problems})
    elif seen.ok:
        _say(f"{path}: whole, {seen.files_checked} files are as they were sealed")
    else:
        _say(f"{path}: not as it was sealed", "bold red")
        for problem in seen.problems:
            _say(f"  {problem}")
    context.exit(_exit_code(seen))


@bundle.command("show", short_help="Tell the story of a bundle.")
@_path
@_json
@click.pass_context
def show_command(context: click.Context, path: Path | None, *, as_json: bool) -> None:
    """Tell the story of the bundle at PATH: who waited for whom and why, and what was captured.

    Without PATH, it is the last one of the newest job here.

    Exit code: 0 whole, 2 changed or incomplete, 65 not a bundle.
    """
    path = path or newest_bundle()
    seen = verify(path)
    diagnosis = _diagnosis(path)
    if as_json:
        _print_json({"manifest": _or_null(seen.manifest), "diagnosis": _or_null(diagnosis), "problems": seen.problems})
    else:
        for text, style in _story(path, seen, diagnosis):
            _say(text, style)
    context.exit(_exit_code(seen))


def _diagnosis(path: Path) -> Diagnosis | Missing:
    try:
        return load_diagnosis(path)
    except PartUnreadable as problem:
        return Missing(str(problem))


def _story(path: Path, seen: Verification, diagnosis: Diagnosis | Missing) -> Iterator[tuple[str, str]]:
    if seen.problems:
        yield "This bundle is not as it was sealed:", "bold red"
        yield from ((f"  {problem}", "red") for problem in seen.problems)
        yield "", ""
    match diagnosis:
        case Missing(reason=why):
            yield f"No diagnosis: {why}", ""
        case Diagnosis():
            yield from _say_diagnosis(diagnosis)
    if isinstance(seen.manifest, Manifest):
        yield from _say_manifest(seen.manifest)
    yield "", ""
    yield f"Stacks, logs and the picture: {path / 'report.html'}", ""


def _say_diagnosis(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    yield f"{diagnosis.verdict} / {diagnosis.cause} ({diagnosis.certainty}): {diagnosis.sentence}", "bold"
    for head, lines in (("for:", diagnosis.reasons_for), ("against:", diagnosis.reasons_against), ("do next:", diagnosis.suggested)):
        for place, line in enumerate(lines):
            yield f"  {head if place == 0 else '':9}{line}", ""


def _say_manifest(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield f"job {manifest.job}, attempt {manifest.attempt}, incident {manifest.incident}", ""
    later_s = manifest.sealed_unix_s - manifest.onset_unix_s
    yield f"last progress {_utc(manifest.onset_unix_s)}; sealed {_utc(manifest.sealed_unix_s)}, {say_duration(later_s)} later", ""
    for entry in manifest.ranks:
        yield f"  rank {entry.rank} on {entry.node}, process {entry.pid}: {', '.join(entry.captured) or 'nothing captured'}", ""
        for what, why in entry.missing.items():
            if what not in _EXPECTED_ABSENT:
                yield f"    no {what}: {why}", "yellow"
    for what, why in manifest.host_missing.items():
        yield f"  machine: no {what}: {why}", "yellow"
    for how in manifest.touched:
        yield f"  touched: {how}", ""


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _exit_code(seen: Verification) -> int:
    return ExitCode.OK if seen.ok else ExitCode.CRITICAL


def _or_null(value: Any) -> Any:
    return None if isinstance(value, Missing) else value


def _say(text: str, style: str = "") -> None:
    """One line; colour only on a terminal."""
    Console(highlight=False).print(shown(text, style), soft_wrap=True)


def _print_json(value: Any) -> None:
    say_json(value, indent=2)
