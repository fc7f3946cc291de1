"""`rankpatrol replay`: a recording through the same judge in virtual time, under other settings."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say_json
from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import parse_duration_s, say_duration
from rankpatrol.core.errors import BadInput, ExitCode, NoPermission, UsageProblem
from rankpatrol.judge.tape import read_tape
from rankpatrol.replay.compare import conclusions, differences, say
from rankpatrol.replay.play import Replayed, harmful
from rankpatrol.replay.play import replay as play
from rankpatrol.replay.settings import changed

_GZIP = b"\x1f\x8b"
# A recording is 64 MiB at most: what unpacks to far more is none.
_MOST_BYTES = 256 << 20
_WHICH = "Give the recording.jsonl of a job, plain or gzipped; `run --record` and `watch --record` write one."


@click.command(short_help="Judge a recorded job again, under other settings.")
@click.argument("file", type=GivenPath(), metavar="FILE")
@click.option("--patience", metavar="DURATION", help="How long nothing may work before it is a hang, such as 90s.  [default: as recorded]")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting of the judge; may be repeated.  [default: as recorded]"
)
@click.option("--policy", type=click.Choice(["observe", "recover"]), help="Never act, or end and resume.  [default: as recorded]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def replay(file: Path, patience: str | None, settings: tuple[str, ...], policy: str | None, as_json: bool) -> int:
    """Judge a recorded job again, under other settings: would they have caught it sooner, or ended a healthy job?

    \b
    rankpatrol run --record torchrun …        writes JOBDIR/recording.jsonl
    rankpatrol replay JOBDIR/recording.jsonl --patience 60s --set still-budget=10s
    """  # ruff: ignore[D301] - click reads the control character: keep these lines as they are
    items = tuple(read_tape(_lines(file / "recording.jsonl" if file.is_dir() else file)))
    recorded = play(items)
    wanted: dict[str, str | float] = dict(map(_pair, settings))
    if patience is not None:
        wanted["patience_s"] = parse_duration_s(patience)
    acts = None if policy is None else policy == "recover"
    now = play(items, changed(recorded.recorded_policy, wanted), acts=acts)
    if as_json:
        say_json(_document(recorded, now))
    else:
        _print(recorded, now)
    return _code(now)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageProblem(f"{text!r} is no setting", help="Write --set KEY=VALUE, such as --set still-budget=10s.")
    return name, value


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a plain or a gzipped file."""
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == _GZIP
        with gzip.open(path, "rb") if packed else path.open("rb") as lines:
            content = lines.read(_MOST_BYTES + 1)
    except PermissionError as problem:
        raise NoPermission(f"{path} cannot be read", help="Ask its owner, or copy it to where you can read it.") from problem
    except (OSError, EOFError, zlib.error) as problem:
        why = problem.strerror if isinstance(problem, OSError) else None
        raise BadInput(f"{path} cannot be read: {why or problem}", help=_WHICH) from problem
    if len(content) > _MOST_BYTES:
        raise BadInput(f"{path} is larger than any recording", help=_WHICH)
    yield from content.split(b"\n")


def _code(now: Replayed) -> ExitCode:
    if harmful(now.endings):
        return ExitCode.CRITICAL
    return ExitCode.WARNING if any(entry.kind in {"alert", "verdict"} for entry in now.entries) else ExitCode.OK


def _changes(now: Replayed) -> dict[str, tuple[float, float]]:
    was, is_now = msgspec.structs.asdict(now.recorded_policy), msgspec.structs.asdict(now.policy)
    return {name: (was[name], is_now[name]) for name in was if was[name] != is_now[name]}


def _document(recorded: Replayed, now: Replayed) -> dict[str, Any]:
    return {
        "job": now.job,
        "ranks": now.world_size,
        "seconds": now.seconds,
        "settings": now.policy,
        "changed": {name: {"recorded": was, "now": is_now} for name, (was, is_now) in _changes(now).items()},
        "acts": now.acts,
        "timeline": now.entries,
        "recorded_timeline": recorded.entries,
        "compared": differences(recorded, now),
        "endings": now.endings,
        "ended_healthy": [ending.attempt for ending in harmful(now.endings)],
        "looks_missed": now.looks_missed,
        "as_recorded": recorded.as_said,
        "remarks": (*now.remarks, *conclusions(now)),
    }


def _print(recorded: Replayed, now: Replayed) -> None:
    console = Console(soft_wrap=True, highlight=False)
    changes = ", ".join(f"{name} {is_now:g} (recorded: {was:g})" for name, (was, is_now) in _changes(now).items())
    policy = "" if now.acts == now.recorded_acts else f", policy {'recover' if now.acts else 'observe'}"
    console.print(shown(f"{now.job}: {say_count(now.world_size, 'rank')}, {say_duration(now.seconds)} recorded", style="bold"))
    console.print(shown(f"settings: {changes or 'as recorded'}{policy}"))
    for entry in now.entries:
        what = " ".join(word for word in (f"[{entry.incident}]" if entry.incident else "", entry.what) if word)
        sentence = f": {entry.sentence}" if entry.sentence else ""
        console.print(shown(f"  +{entry.at_s:<9.1f}{entry.kind.replace('_', ' '):<16} {what}{sentence}"))
    if now.policy != now.recorded_policy or now.acts != now.recorded_acts:
        console.print(shown("compared with the recorded settings:", style="bold"))
        for each in differences(recorded, now):
            console.print(shown(f"  attempt {each.attempt}, first {each.kind}: {say(each)}"))
    if not recorded.as_said:
        console.print(shown("under its own settings this rankpatrol says otherwise than the one that recorded: it has changed since"))
    for line in (*now.remarks, *conclusions(now)):
        console.print(shown(f"  {line}"))
