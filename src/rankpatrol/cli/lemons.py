"""`rankpatrol lemons`: nodes that failed before, and what to tell the scheduler."""

import time

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rankpatrol.cli.screen import page, shown
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.errors import ExitCode, UsageProblem
from rankpatrol.lemons.advice import Weights, exclude_option, node_affinity, stories
from rankpatrol.lemons.memory import LemonMemory, lemon_path
from rankpatrol.lemons.records import Memory, NodeStory

_DAY_S = 86400


@click.command(short_help="Say which nodes failed, and which to leave out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--forget", metavar="NODE", help="Forget NODE's incidents, since it was mended; needs --yes.  [default: nothing is forgotten]"
)
@click.option("--yes", is_flag=True, help="Yes, forget them.")
def lemons(as_json: bool, forget: str | None, yes: bool) -> int:
    """Say which nodes failed in your jobs of the last 30 days, and which of them to leave out.

    Only incidents that may be of the machine count, and only on a node that stands out among others. Exit code: 0, or 1 where there is one
    to leave out.
    """
    path = lemon_path()
    if path is None:
        raise UsageProblem("there is no memory of nodes: RANKPATROL_LEMONS is empty", help="Unset it, or name a file.")
    if forget is not None:
        return _forget(LemonMemory(path), forget, yes=yes)
    weights = Weights()
    memory = LemonMemory(path).read()
    found = stories(memory, time.time(), weights)
    nodes = [story.node for story in found if story.lemon is not None]
    if as_json:
        advice = {"slurm": exclude_option(nodes), "kubernetes": node_affinity(nodes)} if nodes else None
        document = {"file": str(path), "window_s": weights.window_s, "lemons": nodes, "advice": advice, "nodes": found}
        say_json(document)
    else:
        _print(page(), found, nodes, memory)
    return ExitCode.WARNING if nodes else ExitCode.OK


def _forget(memory: LemonMemory, node: str, *, yes: bool) -> int:
    if not yes:
        raise UsageProblem(f"the incidents of {node} would be forgotten", help=f"If you mean it: rankpatrol lemons --forget {node} --yes")
    say(f"{memory.forget(node)} incidents of {node} forgotten")
    return ExitCode.OK


def _print(console: Console, found: tuple[NodeStory, ...], nodes: list[str], memory: Memory) -> None:
    if not found:
        known = len({use.node for use in memory.uses})
        console.print(shown(f"No node had an incident in the last 30 days ({known} known)."))
        return
    console.print(_table(found))
    for story in found:
        console.print(shown(f"{story.node}: {f'leave it out: {story.lemon}' if story.lemon else story.weighed}"))
    if nodes:
        console.print(shown(f"Slurm:      {exclude_option(nodes)}", style="bold"))
        affinity = msgspec.json.encode(node_affinity(nodes)).decode()
        console.print(shown(f"Kubernetes: affinity: {affinity}", style="bold"))
        console.print(shown("(in a pod a node is known by its pod's name, unless hostNetwork is set: look up its node first)", style="dim"))


def _table(found: tuple[NodeStory, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("node", "jobs", "incidents", "hardware", "perhaps", "last", "causes", "devices"):
        table.add_column(column, justify="right" if column in {"jobs", "incidents", "hardware", "perhaps"} else "left")
    for story in found:
        last = time.strftime("%Y-%m-%d", time.localtime(story.last_unix_s))
        causes = ", ".join(f"{cause} {number}" for cause, number in story.causes.items())
        devices = ", ".join(f"{each.device} ({each.incidents})" for each in story.devices)
        counts = (story.jobs, story.incidents, story.hardware, story.perhaps)
        table.add_row(shown(story.node), *map(str, counts), last, shown(causes), shown(devices))
    return table
