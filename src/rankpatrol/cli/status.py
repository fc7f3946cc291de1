"""`rankpatrol status` and `rankpatrol why`: what is going on now, and the last verdict."""

import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, ExitCode
from rankpatrol.journal import read_events

# The agent writes its state once a second; much older than that, it is not running.
_STALE_S = 10.0
# Verdicts on a job that goes on: nothing is done about them.
_GOES_ON = frozenset({"slow", "benign_wait", "healthy"})


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(job_dir: Path | None, as_json: bool) -> int:
    """Say what a job is doing now, rank by rank (the newest job here, unless JOBDIR is given)."""
    folder = _find(job_dir)
    state = _read_state(folder)
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
    folder = _find(job_dir)
    events = list(read_events(folder))
    last = next((event for event in reversed(events) if event["kind"] in {"verdict", "alert"}), None)
    story = [event for event in events if last is not None and event.get("incident") == last["incident"]]
    bundle = next((event["path"] for event in story if event["kind"] == "bundle_sealed"), None)
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


def _find(job_dir: Path | None) -> Path:
    if job_dir is not None:
        if not (job_dir / "job.json").exists():
            raise BadInput(f"{job_dir} is not a job directory", help="Give the folder that `rankpatrol run` named in its first line.")
        return job_dir
    found = sorted(Path("rankpatrol-runs").glob("*/job.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise BadInput("there is no job here", help="Start one with `rankpatrol run torchrun …`, or give a job directory.")
    return found[-1].parent


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((folder / "state.json").read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise BadInput(f"{folder} has no state yet", help="The agent writes it within seconds of the start; look again.") from None
    except msgspec.MsgspecError as problem:
        raise BadInput(
            f"{folder / 'state.json'} cannot be read: {problem}", help="Was it edited? `events.jsonl` has the story."
        ) from problem


def _health(state: dict[str, Any], age_s: float) -> ExitCode:
    """Nobody looking is unknown, not healthy."""
    if state["ended"]:
        return ExitCode.OK if state["ended"] == "finished" else ExitCode.CRITICAL
    if age_s > _STALE_S:
        return ExitCode.UNKNOWN
    incident = state["incident"]
    if incident is None or incident["stage"] == "closed":
        return ExitCode.WARNING if state.get("asides") else ExitCode.OK
    return ExitCode.WARNING if incident["stage"] == "alerted" else ExitCode.CRITICAL


def _print_status(folder: Path, state: dict[str, Any], age_s: float) -> None:
    console = Console(soft_wrap=True)
    ended = f"ended: {state['ended']}" if state["ended"] else "running"
    console.print(Text(f"{state['job']} · {ended} · attempt {state['attempt']} · step {state['step']} · policy {state['policy']}"))
    if age_s > _STALE_S and not state["ended"]:
        console.print(Text(f"no agent has reported for {say_duration(age_s)}: what follows is old", style="yellow"))
    incident = state["incident"]
    if incident is not None and incident["stage"] != "closed":
        console.print(Text(f"incident {incident['incident']} ({incident['stage']}): {incident['diagnosis']['sentence']}", style="bold"))
    for aside in state.get("asides") or []:
        console.print(Text(f"incident {aside['incident']}, nothing is done about it: {aside['diagnosis']['sentence']}", style="yellow"))
    if state["ranks"]:
        console.print(_table(state["ranks"]))
    for line in say_groups(state.get("groups") or [], state.get("patience_s", 0.0)):
        console.print(Text(line))
    console.print(Text(f"events: {folder / 'events.jsonl'}", style="dim"))


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
        incident = _read_state(folder)["incident"]
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
        case "incident_closed":
            return f"closed: {event['how']}"
        case kind:
            return str(kind)
