"""`rankpatrol metrics`: a job directory in Prometheus's words."""

from pathlib import Path

import click
import msgspec

from rankpatrol.agent.posting import reading_of
from rankpatrol.cli.jobs import find_job, read_state
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.errors import BadInput, UsageProblem
from rankpatrol.journal import read_events


@click.command(short_help="Print a job's metrics for Prometheus.")
@click.argument("job_dir", type=GivenPath(), required=False, metavar="[JOBDIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the reading that the metrics are made of, as one JSON document.")
def metrics(job_dir: Path | None, as_json: bool) -> None:
    """Print what a job's agent would serve, of a job that runs or is over (the newest job here, unless JOBDIR is given).

    The time of the last round (rankpatrol_agent_round_timestamp_seconds) tells how old the numbers are.
    """
    folder = find_job(job_dir)
    _, whole = read_state(folder)
    try:
        reading = reading_of(msgspec.json.encode(whole), read_events(folder))
    except msgspec.MsgspecError as problem:
        raise BadInput(
            f"{folder / 'state.json'} cannot be read: {problem}", help="Was it edited? `events.jsonl` has the story."
        ) from problem
    if as_json:
        say_json(reading)
        return
    try:
        from rankpatrol.metrics.collector import exposition  # ruff: ignore[PLC0415] - an extra's
    except ImportError:
        raise UsageProblem(
            "prometheus-client is not installed", help="pip install '.[metrics]' in rankpatrol's clone, or ask for --json."
        ) from None
    say(exposition((reading,)).decode().rstrip("\n"))
