"""`rankpatrol goodput`: where the time of a job went."""

import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.text import Text

from rankpatrol.cli.jobs import find_job, not_told_yet
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import shown
from rankpatrol.cli.words import say_json
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, NoPermission
from rankpatrol.core.records import Missing
from rankpatrol.evidence.picture import say_ranks
from rankpatrol.goodput.account import account_of, runs_of
from rankpatrol.goodput.picture import draw, name_of, title
from rankpatrol.goodput.records import BADPUT_TYPES, Account, Card, Launch, Part
from rankpatrol.goodput.story import launch_of
from rankpatrol.system.files import read_plain, write_atomic

_COLOURS = {
    Part.PRODUCTIVE: "green",
    Part.INITIALISATION: "blue",
    Part.CHECKPOINT: "magenta",
    Part.STALL: "red",
    Part.LOST_WORK: "yellow",
    Part.RECOVERY: "cyan",
    Part.QUEUE: "bright_yellow",
    Part.IDLE: "bright_black",
}
_BAR_COLUMNS = 40
_MOST_BYTES = 8 << 30


@click.command(short_help="Say where a job's wall time went.")
@click.argument("job_dirs", nargs=-1, type=GivenPath(), metavar="[JOBDIR]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--svg", type=GivenPath(), help="Draw the account into FILE as well.  [default: no picture]", metavar="FILE")
def goodput(job_dirs: tuple[Path, ...], as_json: bool, svg: Path | None) -> None:
    """Say where a job's wall time went, and what each incident cost, from events.jsonl alone.

    Without JOBDIR, it is the newest job here.

    Several job directories are added up: launches of the same command, one after another, are one run, with the time between them.
    """
    with _no_collector():
        accounts = [account_of(run) for run in runs_of(_launches(job_dirs or (find_job(None),)))]
    if svg is not None:
        _write(svg, accounts)
    if as_json:
        say_json(_document(accounts))
        return
    console = Console(soft_wrap=True, highlight=False)
    for account in accounts:
        _print(console, account)
    if len(accounts) > 1:
        wall_s, productive_s = _total(accounts)
        console.print(shown(f"all {len(accounts)} runs: {productive_s / wall_s if wall_s else 0:.1%} of {say_duration(wall_s)} productive"))
    if svg is not None:
        console.print(shown(f"picture: {svg}", style="dim"))


@contextmanager
def _no_collector() -> Iterator[None]:
    """Millions of events are no garbage, and going through them again and again takes as long as to read them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _launches(job_dirs: Iterable[Path]) -> list[Launch]:
    """Each directory once, however often it is named. Raises BadInput where one has no events."""
    folders = {os.path.realpath(folder): folder for folder in job_dirs}
    return [_launch(folder, number) for number, folder in enumerate(folders.values())]


def _launch(folder: Path, number: int) -> Launch:
    path = folder / "events.jsonl" if folder.is_dir() else folder
    try:
        content = read_plain(path, _MOST_BYTES)
    except FileNotFoundError:
        if os.path.lexists(folder / "job.json"):
            raise not_told_yet(folder, "event") from None
        raise BadInput(f"{folder} is not a job directory: it has no events.jsonl", help=_WHICH) from None
    found = launch_of(str(folder), content, number)
    if found is None:
        raise BadInput(f"{path} holds no event", help="The agent writes the first ones when all ranks have started; look again.")
    return found


_WHICH = "Give the folder that `rankpatrol run` named in its first line (or an events.jsonl)."


def _document(accounts: Sequence[Account]) -> dict[str, object]:
    wall_s, productive_s = _total(accounts)
    parts_s = {part: sum(account.parts_s[part] for account in accounts) for part in Part}
    return {
        "wall_s": wall_s,
        "ettr_ratio": productive_s / wall_s if wall_s else None,
        "parts_s": parts_s,
        "badput_types": BADPUT_TYPES,
        "runs": accounts,
    }


def _total(accounts: Iterable[Account]) -> tuple[float, float]:
    return sum(account.wall_s for account in accounts), sum(account.parts_s[Part.PRODUCTIVE] for account in accounts)


def _print(console: Console, account: Account) -> None:
    console.print(shown(", ".join(account.sources), style="dim"))
    console.print(shown(title(account), style="bold"))
    for part, length_s in account.parts_s.items():
        if length_s:
            console.print(_row(part, length_s, account.wall_s))
    if account.cards:
        console.print(shown(_means(account)))
    for card in account.cards:
        _print_card(console, card)
    for remark in account.remarks:
        console.print(shown(f"note: {remark}", style="yellow"))


def _row(part: Part, length_s: float, wall_s: float) -> Text:
    """A block for each fortieth of the wall time; what was there at all has a mark."""
    blocks = round(_BAR_COLUMNS * length_s / wall_s)
    row = shown(f"  {name_of(part):<15}")
    row.append("█" * blocks or "▏", style=_COLOURS[part])
    row.append(" " * (_BAR_COLUMNS - max(1, blocks)))
    row.append(f"{length_s / wall_s:>7.1%}  {say_duration(length_s)}")
    return row


def _means(account: Account) -> str:
    pairs = (
        ("time to detect (MTTD)", account.mean_time_to_detect_s),
        ("to identify (MTTI)", account.mean_time_to_identify_s),
        ("to recover (MTTR)", account.mean_time_to_recover_s),
    )
    return "from onset, in the mean: " + " · ".join(f"{name} {_duration(value)}" for name, value in pairs)


def _duration(value: float | Missing) -> str:
    return "not known" if isinstance(value, Missing) else say_duration(value)


def _print_card(console: Console, card: Card) -> None:
    incident = card.incident
    who = f", {say_ranks(incident.culprit_ranks)}" if incident.culprit_ranks else ", nobody named"
    where = f" on {', '.join(card.nodes)}" if card.nodes else ""
    head = f"incident {incident.incident} (attempt {incident.attempt}): {incident.verdict or 'alert'} / {incident.cause}{who}{where}"
    console.print(shown(head, style="bold"))
    if incident.sentence:
        console.print(shown(f"  {incident.sentence}"))
    times = (("detected", card.time_to_detect_s), ("named", card.time_to_identify_s), ("back", card.time_to_recover_s))
    console.print(shown("  after its onset: " + " · ".join(f"{name} {_duration(value)}" for name, value in times)))
    console.print(shown(f"  cost: {_say_cost(card)}"))
    if card.prevented:
        console.print(shown(f"  {_say_prevented(card)}"))


def _say_cost(card: Card) -> str:
    named = (("stall", card.stall_s), ("recovery", card.recovery_s), ("queue", card.queue_s), ("lost work", card.lost_work_s))
    parts = [f"{name} {say_duration(length_s)}" for name, length_s in named if length_s]
    total_s = sum(length_s for _, length_s in named)
    said = f"{' + '.join(parts) or 'nothing'} = {say_duration(total_s)}"
    if card.ranks is None or card.rank_hours is None:
        return said
    return f"{said} of {card.ranks} ranks = {card.rank_hours:.2f} GPU-hours (one GPU a rank)"


def _say_prevented(card: Card) -> str:
    """Both, since events do not tell a group's backend nor its own time-out."""
    each = [
        f"{say_duration(saved.stall_saved_s)}"
        + ("" if saved.rank_hours_saved is None else f" ({saved.rank_hours_saved:.2f} GPU-hours)")
        + f" sooner than {saved.time_out}'s default of {saved.time_out_s / 60:.0f} min"
        for saved in card.prevented
    ]
    return f"without patrol it stands until the group's own time-out: ended {', or '.join(each)}"


def _write(path: Path, accounts: Sequence[Account]) -> None:
    """One picture a run; the first bears the name as given."""
    page = Environment(loader=PackageLoader("rankpatrol.goodput", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = page.get_template("picture.svg.j2")
    for number, account in enumerate(accounts):
        target = path if number == 0 else path.with_stem(f"{path.stem}-{number + 1}")
        if target.exists() and not target.is_file():
            # The picture takes its file's place in one step: it would take that of a device, too.
            raise BadInput(f"the picture cannot be written: {target} is no regular file", help="Name another --svg FILE.")
        try:
            write_atomic(target, template.render(picture=draw(account)).encode())
        except OSError as problem:
            kind = NoPermission if isinstance(problem, PermissionError) else BadInput
            raise kind(f"the picture cannot be written: {problem.strerror} ({target})", help="Name another --svg FILE.") from problem
