"""`rankpatrol status` and `rankpatrol why`: what is going on now, and the last verdict."""

import shlex
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankpatrol.cli.jobs import STALE_S, find_job, read_state
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, ExitCode
from rankpatrol.journal import read_events

# Verdicts on a job that goes on: nothing is done about them.
_GOES_ON = frozenset({"slow", "benign_wait", "healthy"})


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(job_dir: Path | None, as_json: bool) -> int:
    """Say what a job is doing now, rank by rank (the newest job here, unless JOBDIR is given)."""
    folder = find_job(job_dir)
    state = read_state(folder)
    age_s = max(0.0, time.time() - state["at_unix_s"])
    state["age_s"] = round(age_s, 1)
    if as_json:
        click.echo(msgspec.json.encode(state))
    else:
        _print_status(folder, state, age_s)
    return _health(state, age_s)


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def why(job_dir: Path | None, as_json: bool) -> int:
    """Say what the last incident was, with all that speaks for and against."""
    folder = find_job(job_dir)
    events = list(read_events(folder))
    last = next((event for event in reversed(events) if event["kind"] in {"verdict", "alert"}), None)
    story = [event for event in events if last is not None and event.get("incident") == last["incident"]]
    bundle = next((event["path"] for event in reversed(story) if event["kind"] == "bundle_sealed"), None)
    diagnosis = _diagnosis(bundle) or _open_diagnosis(folder) or {}
    if as_json:
        click.echo(msgspec.json.encode({"last": last, "diagnosis": diagnosis, "bundle": bundle, "story": story}))
    elif last is None:
        click.echo(f"Nothing was suspected in {folder}.")
    else:
        _print_why(last, diagnosis, story, bundle)
    if last is None:
        return ExitCode.OK
    return ExitCode.CRITICAL if last["kind"] == "verdict" and last.get("verdict") not in _GOES_ON else ExitCode.WARNING


def _health(state: dict[str, Any], age_s: float) -> ExitCode:
    """Nobody looking is unknown, not healthy."""
    if state["ended"]:
        return ExitCode.OK if state["ended"] == "finished" else ExitCode.CRITICAL
    if age_s > STALE_S:
        return ExitCode.UNKNOWN
    incident = state["incident"]
    if incident is None or incident["stage"] == "closed":
        return ExitCode.WARNING if state.get("asides") else ExitCode.OK
    return ExitCode.WARNING if incident["stage"] == "alerted" else ExitCode.CRITICAL


def _print_status(folder: Path, state: dict[str, Any], age_s: float) -> None:
    console = Console(soft_wrap=True)
    ended = f"ended: {state['ended']}" if state["ended"] else "running"
    console.print(Text(f"{state['job']} · {ended} · attempt {state['attempt']} · step {state['step']} · policy {state['policy']}"))
    if age_s > STALE_S and not state["ended"]:
        console.print(Text(f"no agent has reported for {say_duration(age_s)}: what follows is old", style="yellow"))
    incident = state["incident"]
    if incident is not None and incident["stage"] != "closed":
        console.print(Text(f"incident {incident['incident']} ({incident['stage']}): {incident['diagnosis']['sentence']}", style="bold"))
    _print_standing(console, folder, state)
    for aside in state.get("asides") or []:
        console.print(Text(f"incident {aside['incident']}, nothing is done about it: {aside['diagnosis']['sentence']}", style="yellow"))
    if state["ranks"]:
        console.print(_table(state["ranks"]))
    for line in say_groups(state.get("groups") or [], state.get("patience_s", 0.0)):
        console.print(Text(line))
    console.print(Text(f"events: {folder / 'events.jsonl'}", style="dim"))


def _print_standing(console: Console, folder: Path, state: dict[str, Any]) -> None:
    """What waits for a person: a pause, a question."""
    pause = state.get("paused")
    if pause is not None and not state["ended"]:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(pause["since_unix_s"]))
        why = f" ({pause['why']})" if pause["why"] else ""
        command = "rankpatrol unpause" + (f" {shlex.quote(str(folder))}" if pause["scope"] == "job" else "")
        console.print(
            Text(f"actions are paused since {since} by {pause['by']}{why}; watching goes on. To end it: {command}", style="yellow")
        )
    answer_with = state.get("answer_with")
    if answer_with is not None and not state["ended"]:
        console.print(Text(f"it waits for an answer; why: rankpatrol why {shlex.quote(str(folder))}", style="bold"))
        console.print(Text(f"                     to act: {answer_with}", style="bold"))


def say_groups(groups: list[dict[str, Any]], patience_s: float) -> list[str]:
    """Each kind of process group with its own time-out, and what that means beside our patience."""
    lines = []
    for group in (each for each in groups if each["timeout_s"] is not None and each["ranks"] > 1):
        more = f" and {group['groups'] - 1} more like it" if group["groups"] > 1 else ""
        head = (
            f"process group {group['name']}{more} ({group['backend']}, {group['ranks']} ranks): time-out {say_duration(group['timeout_s'])}"
        )
        if group["timeout_s"] <= patience_s:
            advice = (
                f"shorter than patience ({say_duration(patience_s)}): it ends the ranks before a verdict; the evidence is sealed before"
            )
        else:
            advice = "longer than patience, as it should be"
        lines.append(f"{head}, {advice}")
    return lines


def _table(ranks: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "pid", "step", "still for", "at"):
        table.add_column(column, justify="right" if column in {"rank", "pid", "step", "still for"} else "left")
    for row in ranks:
        still = "" if row["still_for_s"] is None or row["still_for_s"] < 2 else say_duration(row["still_for_s"])
        at = f"ended with {row['exit_status']}" if row["exit_status"] is not None else row["at"] or "runs"
        step = "" if row["step"] is None else str(row["step"])
        table.add_row(str(row["rank"]), Text(row["node"]), str(row["pid"]), step, still, Text(at))
    return table


def _diagnosis(bundle: str | None) -> dict[str, Any] | None:
    if bundle is None:
        return None
    try:
        return msgspec.json.decode((Path(bundle) / "diagnosis.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return None


def _open_diagnosis(folder: Path) -> dict[str, Any] | None:
    """The diagnosis of an incident whose bundle is not sealed yet."""
    try:
        incident = read_state(folder)["incident"]
    except BadInput:
        return None
    return incident["diagnosis"] if incident else None


def _print_why(last: dict[str, Any], diagnosis: dict[str, Any], story: list[dict[str, Any]], bundle: str | None) -> None:
    console = Console(soft_wrap=True)
    head = f"{last.get('verdict', 'alert')} / {last['cause']} ({last['certainty']})"
    console.print(Text(f"{head}: {last['sentence']}", style="bold"))
    for title, lines in (("for", diagnosis.get("for")), ("against", diagnosis.get("against")), ("next", diagnosis.get("suggested"))):
        for line in lines or ():
            console.print(Text(f"  {title + ':':<9}{line}"))
    for event in story:
        console.print(Text(f"  {time.strftime('%H:%M:%S', time.localtime(event['at_unix_s']))} {_say_event(event)}", style="dim"))
    if bundle is not None:
        console.print(Text(f"  evidence: {bundle} (open report.html in it, or: rankpatrol bundle show {bundle})"))


def _say_event(event: dict[str, Any]) -> str:
    match event["kind"]:
        case "action":
            outcome = {None: "begun", True: "done", False: f"not done: {event.get('why')}"}[event["done"]]
            return f"action {event['what']} ({event['target']}): {outcome}"
        case "bundle_sealed":
            return f"evidence sealed in {event['seconds']} s"
        case "question":
            return f"asked: {event['what']}? To have it done: {event['command']}"
        case "action_held":
            return f"not acted upon: paused by {event['by']}"
        case "action_refused" | "answer_refused":
            return f"nothing was done: {event['why']}"
        case "incident_closed":
            return f"closed: {event['how']}"
        case kind:
            return str(kind)
