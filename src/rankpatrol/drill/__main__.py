"""`rankpatrol drill F5 F6b --runs 10`: one line a run, then the scorecard. Exit code 1 where a bar was missed.

A drill that was stopped goes on where it was when it is given the same --out.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console

from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say
from rankpatrol.config.settings import PATIENCE
from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import parse_duration_s
from rankpatrol.core.errors import PatrolError, UsageProblem
from rankpatrol.core.records import Record
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults import fault_ids, make
from rankpatrol.drill.runner import Settings, play
from rankpatrol.drill.scene import draw
from rankpatrol.drill.score import Bars, Score, not_run, score
from rankpatrol.drill.scorecard import read_runs, table, to_json
from rankpatrol.system.files import write_atomic

_SILENCE_S = 20.0
_SCORECARD = "scorecard.json"


class Campaign(Record, frozen=True, kw_only=True):
    """What all runs of one folder have in common."""

    seed: str
    ranks: int
    patience: str
    attached: bool


class Draw(Record, frozen=True):
    """What one run is drawn from."""

    fault_id: str
    number: int
    seed: str
    ranks: int


@click.command(short_help="Break real trainings on purpose, and score the patrol.")
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--runs", type=click.IntRange(1), metavar="N", default=1, show_default=True, help="Runs of each drill.")
@click.option("--ranks", type=click.IntRange(2), metavar="N", default=4, show_default=True, help="Ranks of the training.")
@click.option("--seed", metavar="TEXT", help="Draws the same ranks and steps again.  [default: a new one, printed]")
@click.option("--patience", default="20s", metavar="DURATION", show_default=True, help="The patrol's patience.")
@click.option("--attached", is_flag=True, help="Start the training without rankpatrol, and watch it from outside.")
@click.option("--record", is_flag=True, help="Keep what the judge saw, for `rankpatrol replay`; with --keep also of runs that passed.")
@click.option(
    "--out", type=GivenPath(file_okay=False), help="Folder for the scorecard and for what failed runs left.  [default: drill-runs/UTC]"
)
@click.option("--watch", is_flag=True, help="Print what the patrol tells while a run goes on.")
@click.option("--keep", is_flag=True, help="Keep the folders of runs that passed, too.")
def main(  # ruff: ignore[PLR0913, PLR0917] - one parameter an option
    ids: tuple[str, ...],
    runs: int,
    ranks: int,
    seed: str | None,
    patience: str,
    attached: bool,
    record: bool,
    out: Path | None,
    watch: bool,
    keep: bool,
) -> None:
    """Break real trainings on purpose, and score how the patrol does."""
    # A pipe would count as 80 columns, which cuts the scorecard's times.
    console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)
    chosen = _choose(ids)
    try:
        PATIENCE.from_text(patience)
    except UsageProblem as problem:
        say(f"--patience: {problem}. {problem.help}", err=True)
        sys.exit(problem.exit_code)
    out = out or Path("drill-runs") / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    out.mkdir(parents=True, exist_ok=True)
    campaign = _begun(out, Campaign(seed=seed or "", ranks=ranks, patience=patience, attached=attached))
    scores = list(read_runs(out / _SCORECARD))
    known = {(one.fault, one.run) for one in scores}
    console.print(shown(f"drill: {', '.join(chosen)}; {runs} x each on {ranks} ranks; --seed {campaign.seed}; results in {out}"))
    if known:
        console.print(shown(f"{say_count(len(known), 'run')} done already: --out {out} goes on where it was"))
    for number in range(runs):
        for fault_id in chosen:
            if (fault_id, number) in known:
                continue
            drawn = Draw(fault_id, number, f"{campaign.seed}:{fault_id}:{number}", ranks)
            settings = Settings(patience=patience, attached=attached, record=record, tell=_teller(console) if watch else None)
            one = _run_one(drawn, settings, out)
            scores.append(one)
            for words in _line(one).split("\n"):
                console.print(shown(words))
            # After each run: a drill that is interrupted has still told what it saw.
            write_atomic(out / _SCORECARD, to_json(scores))
            if one.passed and not keep:
                shutil.rmtree(one.folder)
            elif not one.passed:
                console.print(shown(f"  kept: {one.folder}"))
    console.print(table(scores))
    sys.exit(0 if all(one.passed for one in scores) else 1)


def _teller(console: Console) -> Callable[[Event], None]:
    """Says each event with its seconds since the first of its run."""
    began: list[float] = []

    def tell(event: Event) -> None:
        if event.kind == "job_started" or not began:
            began[:] = [event.at_unix_s]
        if event.kind not in {"progress", "signal", "phase"}:
            words = event.sentence or event.what or event.how or ""
            console.print(shown(f"  {event.at_unix_s - began[0]:6.1f} s  {event.kind}  {words}"))

    return tell


def _begun(out: Path, wanted: Campaign) -> Campaign:
    """The campaign of this folder: begun now, or before with the same settings; its seed stands."""
    note = out / "drill.json"
    if not note.exists():
        begun = wanted if wanted.seed else msgspec.structs.replace(wanted, seed=secrets.token_hex(4))
        write_atomic(note, msgspec.json.encode(begun) + b"\n")
        return begun
    begun = msgspec.json.decode(note.read_bytes(), type=Campaign)
    if msgspec.structs.replace(wanted, seed=wanted.seed or begun.seed) != begun:
        say(f"{out} holds a drill with other settings: {note.read_text().strip()}. Give another --out.", err=True)
        sys.exit(UsageProblem.exit_code)
    return begun


def _choose(ids: tuple[str, ...]) -> list[str]:
    try:
        return [make(one).id for one in ids or fault_ids()]
    except UsageProblem as problem:
        say(f"{problem}. {problem.help}", err=True)
        sys.exit(problem.exit_code)


def _run_one(drawn: Draw, settings: Settings, out: Path) -> Score:
    """One run's score. A run that could not be done is a failed one, and the rest goes on."""
    folder = Path(tempfile.mkdtemp(prefix=f"{drawn.fault_id}-{drawn.number:02d}-", dir=out.resolve()))
    fault = make(drawn.fault_id)
    scene = draw(folder, seed=drawn.seed, ranks=drawn.ranks, steps=fault.steps)
    settings = settings if fault.patience is None else msgspec.structs.replace(settings, patience=fault.patience)
    # A silence is measured against the patience of a drill even where the row has the one that is shipped.
    patience_s = parse_duration_s(settings.patience)
    # The bars for the end are made for the patience of a drill; a longer one comes on top.
    ended_s = fault.ended_s + max(0.0, patience_s - _SILENCE_S)
    bars = Bars(suspect_s=fault.suspect_s, ended_s=ended_s, silence_s=min(patience_s, _SILENCE_S))
    try:
        return score(play(fault, scene, settings, run_number=drawn.number, seed=drawn.seed), bars)
    except (PatrolError, OSError, subprocess.TimeoutExpired) as problem:
        return not_run(drawn.fault_id, drawn.number, drawn.seed, folder=str(folder), why=f"the drill itself failed: {problem}")


def _line(one: Score) -> str:
    struck = f" rank {one.rank}, step {one.step}:" if one.rank is not None else ""
    marks = {"named": one.suspect_s, "verdict": one.verdict_s, "sealed": one.sealed_s, "ended": one.ended_s, "silent": one.silent_s or None}
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in marks.items() if seconds is not None)
    end = f"exit code {one.exit_code} after {one.seconds:.0f} s"
    resumed = f", resumed at step {one.resumed_step}" if one.resumed_step is not None else ""
    head = f"{'passed' if one.passed else 'FAILED'} {one.fault} run {one.run}:{struck} {told + ', ' if told else ''}{end}{resumed}"
    return "\n".join([head, *(f"  - {complaint}" for complaint in one.complaints)])


if __name__ == "__main__":
    main()
