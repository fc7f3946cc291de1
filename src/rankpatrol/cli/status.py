"""`rankpatrol status` and `rankpatrol why`: what is going on now, and the last verdict."""

import shlex
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rankpatrol.cli.job_state import GroupRow, JobState, NodeRow, OpenIncident, RankRow, Said, Told, told
from rankpatrol.cli.jobs import SEEN_WHERE, STALE_S, find_job, read_state
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.screen import page, shown
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, ExitCode, PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.journal import read_events
from rankpatrol.launch.pauses import Pause, machine_pause, say_since
from rankpatrol.system.files import read_plain

_MOST_BYTES = 64 << 20
_LEFT_OUT = "of {folder}/events.jsonl, {count} lines could not be read (cut, or no event) and are left out"

# Of a watched job's rank, or of one whose shim was killed.
_OVER = "ended, nobody told how"

# A node tells its state once a second; clocks kept by NTP differ by milliseconds.
_LATE_S, _CLOCK_S = 5.0, 1.0
# Verdicts on a job that goes on: nothing is done about them.
_GOES_ON = frozenset({"slow", "benign_wait", "healthy"})


@click.command(short_help="Say what a job is doing now, rank by rank.")
@click.argument("job_dir", type=GivenPath(), required=False, metavar="[JOBDIR]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def status(job_dir: Path | None, as_json: bool) -> int:
    """Say what a job is doing now, rank by rank (the newest job here, unless JOBDIR is given)."""
    try:
        folder = find_job(job_dir)
    except BadInput:
        _print_machine_pause(None, err=True)
        raise
    state, whole = read_state(folder)
    age_s = max(0.0, time.time() - state.at_unix_s)
    if as_json:
        say_json({**whole, "age_s": round(age_s, 1), "machine_paused": machine_pause()})
    else:
        _print_status(folder, state, age_s)
        _print_machine_pause(state.paused)
    return _health(state, age_s)


@click.command(short_help="Say what the last incident was, for and against.")
@click.argument("job_dir", type=GivenPath(), required=False, metavar="[JOBDIR]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def why(job_dir: Path | None, as_json: bool) -> int:
    """Say what the last incident was, with all that speaks for and against."""
    folder = find_job(job_dir)
    story, left_out = _last_story(folder)
    last = next((event for event, _ in reversed(story) if event.kind in _FOUND), None)
    if last is None:
        _check_events(folder)
    bundle = _bundle_of(folder, story)
    said = _of_bundle(bundle) or _of_state(folder)
    if as_json:
        events = [event for _, event in story]
        found = next((event for event in reversed(events) if event["kind"] in _FOUND), None)
        say_json({"last": found, "diagnosis": said.whole, "bundle": bundle, "story": events, "left_out": left_out})
    elif last is None:
        say(f"Nothing was suspected in {folder}.")
    else:
        _print_why(last, said.said, [event for event, _ in story], bundle)
    if left_out and not as_json:
        say(_LEFT_OUT.format(folder=folder, count=left_out), err=True)
    if last is None:
        return ExitCode.OK
    return ExitCode.CRITICAL if last.kind == "verdict" and last.verdict not in _GOES_ON else ExitCode.WARNING


_FOUND = frozenset({"verdict", "alert"})


def _last_story(folder: Path) -> tuple[list[tuple[Told, dict[str, Any]]], int]:
    """The events of the last incident that was found, typed and as written; and how many lines were no events."""
    counts: list[int] = []
    events: list[tuple[Told, dict[str, Any]]] = []
    for each in read_events(folder, about=b'"incident"', left_out=counts.append):
        match told(each) if each.get("incident") is not None else None:
            case Told() as event:
                events.append((event, each))
            case Missing():
                counts.append(1)
    last = next((event for event, _ in reversed(events) if event.kind in _FOUND), None)
    return [pair for pair in events if last is not None and pair[0].incident == last.incident], sum(counts)


def _check_events(folder: Path) -> None:
    """Raises BadInput where there is a file of events and no event in it: that nothing was suspected cannot be said then."""
    path = folder / "events.jsonl"
    if next(read_events(folder), None) is None and path.exists() and path.stat().st_size > 0:
        raise BadInput(f"{path} holds no event", help="Was it edited, or is it another program's? `rankpatrol status` reads state.json.")


def _bundle_of(folder: Path, story: list[tuple[Told, dict[str, Any]]]) -> str | None:
    """Where the bundle lies: in this folder, which may have been moved or copied since, else where it was sealed."""
    sealed = next((event.path for event, _ in reversed(story) if event.kind == "bundle_sealed" and event.path is not None), None)
    if sealed is None:
        return None
    here = folder / "incidents" / Path(sealed).name
    return str(here) if _lies_at(here) else sealed


def _lies_at(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _health(state: JobState, age_s: float) -> ExitCode:
    """Nobody looking is unknown, not healthy."""
    if state.ended:
        return ExitCode.OK if state.ended == "finished" else ExitCode.CRITICAL
    if age_s > STALE_S:
        return ExitCode.UNKNOWN
    incident = _open_incident(state)
    if incident is None and _unseen(state):
        return ExitCode.UNKNOWN
    if incident is None:
        return ExitCode.WARNING if state.asides else ExitCode.OK
    return ExitCode.WARNING if incident.stage == "alerted" else ExitCode.CRITICAL


def _open_incident(state: JobState) -> OpenIncident | None:
    return None if state.incident is None or state.incident.stage == "closed" else state.incident


def _unseen(state: JobState) -> int:
    """How many ranks nobody has registered: they have not started yet, or run where nobody looks."""
    return max(0, (state.world_size or 0) - len(state.ranks)) if state.ranks and not state.ended else 0


def _print_status(folder: Path, state: JobState, age_s: float) -> None:
    console = page()
    console.print(shown(_headline(state)))
    if state.ended and state.attempt is None:
        console.print(shown(f"no rank was seen, so nothing was watched. {SEEN_WHERE}", "yellow"))
    if age_s > STALE_S and not state.ended:
        console.print(shown(f"no agent has reported for {say_duration(age_s)}: what follows is old", "yellow"))
    if (incident := _open_incident(state)) is not None:
        console.print(shown(f"incident {incident.incident} ({incident.stage}): {incident.diagnosis.sentence}", "bold"))
    if unseen := _unseen(state):
        words = f"{unseen} of {state.world_size} ranks are not seen, so nothing is judged: they have not started, or nobody looks there"
        console.print(shown(words, "yellow"))
    _print_standing(console, folder, state)
    for aside in state.asides:
        console.print(shown(f"incident {aside.incident}, nothing is done about it: {aside.diagnosis.sentence}", "yellow"))
    if state.ranks:
        console.print(_table(state.ranks, over=state.ended is not None))
    for words in say_nodes(state.nodes):
        console.print(shown(words))
    for row in state.bindings:
        console.print(shown(f"{'rank' if row.ranks.isdigit() else 'ranks'} {row.ranks}: {row.words}"))
    for words in say_groups(state.groups, state.patience_s):
        console.print(shown(words))
    console.print(shown(f"events: {folder / 'events.jsonl'}", "dim"))


def _headline(state: JobState) -> str:
    # Nobody told how a watched job ended.
    ended = "running" if not state.ended else "ended" if state.ended == "ended" else f"ended: {state.ended}"
    attempt = "no attempt" if state.attempt is None else f"attempt {state.attempt}"
    step = "" if state.step is None else f" · step {state.step}"
    return f"{state.job} · {ended} · {attempt}{step} · policy {state.policy}"


def say_nodes(nodes: tuple[NodeRow, ...]) -> list[str]:
    """The other nodes in one line, and one for each that is late, of another release, or whose clock is off."""
    if not nodes:
        return []
    lines = [f"other nodes: {', '.join(node.node for node in nodes)}"]
    for node in nodes:
        if node.heard_ago_s is not None and node.heard_ago_s > _LATE_S + 2 * (node.every_s - 1):
            lines.append(f"{node.node} has told nothing for {say_duration(node.heard_ago_s)}")
        if node.problem:
            lines.append(f"{node.node}: {node.problem}")
        if node.clock_ahead_s is not None and abs(node.clock_ahead_s) > _CLOCK_S:
            which = "ahead of" if node.clock_ahead_s > 0 else "behind"
            lines.append(f"the clock of {node.node} is {say_duration(abs(node.clock_ahead_s))} {which} the first node's")
    return lines


def _print_standing(console: Console, folder: Path, state: JobState) -> None:
    """What waits for a person: a pause, a question."""
    pause = state.paused
    if pause is not None and not state.ended:
        command = "rankpatrol unpause" + (f" {shlex.quote(str(folder))}" if pause.scope == "job" else "")
        console.print(shown(f"actions are paused {say_since(pause)}; watching goes on. To end it: {command}", "yellow"))
    if state.run_dir_full is not None and not state.ended:
        full = f"no room in {state.run_dir_full}, through which agent and ranks speak: make some there, or a hang may not be recovered"
        console.print(shown(full, "yellow"))
    if state.answer_with is not None and not state.ended:
        console.print(shown(f"it waits for an answer; why: rankpatrol why {shlex.quote(str(folder))}", "bold"))
        console.print(shown(f"                     to act: {state.answer_with}", "bold"))


def _print_machine_pause(told: Pause | None, *, err: bool = False) -> None:
    """The pause of all jobs, where the job's own agent has not told of it: this job has ended, or its agent has not seen it yet."""
    pause = machine_pause()
    if pause is not None and (told is None or told.scope != "machine"):
        say(f"all jobs of this user on this machine are paused {say_since(pause)}. To end it: rankpatrol unpause", err=err)


def _local_time(form: str, unix_s: float) -> str:
    """A moment for people; a time that no calendar has is said to be none."""
    try:
        return time.strftime(form, time.localtime(unix_s))
    except (ValueError, OverflowError, OSError):
        return "a time that is none"


def say_groups(groups: tuple[GroupRow, ...], patience_s: float) -> list[str]:
    """Each kind of process group with its own time-out, and what that means beside our patience."""
    lines = []
    for group in groups:
        if group.timeout_s is None or group.ranks <= 1:
            continue
        more = f" and {group.groups - 1} more like it" if group.groups > 1 else ""
        head = f"process group {group.name}{more} ({group.backend}, {group.ranks} ranks): time-out {say_duration(group.timeout_s)}"
        if group.timeout_s <= patience_s:
            advice = (
                f"shorter than patience ({say_duration(patience_s)}): it ends the ranks before a verdict; the evidence is sealed before"
            )
        else:
            advice = "longer than patience, as it should be"
        lines.append(f"{head}, {advice}")
    return lines


def _table(ranks: tuple[RankRow, ...], *, over: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("rank", "node", "pid", "step", "still for", "at"):
        table.add_column(column, justify="right" if column in {"rank", "pid", "step", "still for"} else "left")
    for row in ranks:
        gone = over or row.exit_status is not None
        still = "" if gone or row.still_for_s is None or row.still_for_s < 2 else say_duration(row.still_for_s)
        at = f"ended with {row.exit_status}" if row.exit_status is not None else _OVER if over else row.at or "runs"
        step = "" if row.step is None else str(row.step)
        table.add_row(str(row.rank), shown(row.node), str(row.pid), step, still, shown(at))
    return table


class _Found(Record, frozen=True):
    """A diagnosis as it was written, and typed."""

    whole: Any
    said: Said


def _of_bundle(bundle: str | None) -> _Found | None:
    if bundle is None:
        return None
    try:
        return _found(msgspec.json.decode(read_plain(Path(bundle) / "diagnosis.json", _MOST_BYTES), type=dict[str, Any]))
    except (OSError, PatrolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _of_state(folder: Path) -> _Found:
    """The diagnosis of an incident whose bundle is not sealed yet; an empty one where no state tells it."""
    try:
        state, whole = read_state(folder)
    except BadInput:
        return _Found({}, Said())
    return _Found({}, Said()) if state.incident is None else _found(whole["incident"].get("diagnosis", {}))


def _found(whole: dict[str, Any]) -> _Found:
    return _Found(whole, msgspec.convert(whole, Said))


def _print_why(last: Told, said: Said, story: list[Told], bundle: str | None) -> None:
    console = Console(soft_wrap=True)
    console.print(shown(f"{last.verdict} / {last.cause} ({last.certainty}): {last.sentence}", "bold"))
    for title, lines in (("for", said.reasons_for), ("against", said.reasons_against), ("next", said.suggested)):
        for words in lines:
            console.print(shown(f"  {title + ':':<9}{words}"))
    for event in story:
        console.print(shown(f"  {_local_time('%H:%M:%S', event.at_unix_s)} {_say_event(event)}", "dim"))
    if bundle is not None:
        where = f"{bundle} (open report.html in it, or: rankpatrol bundle show {bundle})"
        gone = f"{bundle} is not there any more: moved or removed, or on another machine"
        console.print(shown(f"  evidence: {where if _lies_at(Path(bundle)) else gone}"))


def _say_event(event: Told) -> str:
    match event.kind:
        case "action":
            outcome = "begun" if event.done is None else "done" if event.done else f"not done: {event.why}"
            return f"action {event.what} ({event.target}): {outcome}"
        case "bundle_sealed":
            return "evidence sealed" if event.seconds is None else f"evidence sealed in {event.seconds} s"
        case "seal_failed":
            return f"the evidence could not be sealed: {event.why}"
        case "question":
            return f"asked: {event.what}? To have it done: {event.command}"
        case "action_held":
            return f"not acted upon: paused by {event.by}"
        case "action_refused" | "answer_refused":
            return f"nothing was done: {event.why}"
        case "incident_closed":
            return f"closed: {event.how}"
        case kind:
            return kind
