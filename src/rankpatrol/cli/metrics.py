"""`rankpatrol metrics`: a job directory in Prometheus's words."""

from pathlib import Path

import click
import msgspec

from rankpatrol.agent.posting import reading_of
from rankpatrol.cli.jobs import find_job, read_state
from rankpatrol.core.errors import BadInput, UsageProblem
from rankpatrol.journal import read_events


@click.command()
@click.argument("job_dir", type=click.Path(path_type=Path), required=False)
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
        click.echo(msgspec.json.encode(reading))
        return
    try:
        from rankpatrol.metrics.collector import exposition  # ruff: ignore[PLC0415] - an extra's
    except ImportError:
        raise UsageProblem("prometheus-client is not installed", help="pip install 'rankpatrol[metrics]', or ask for --json.") from None
    click.echo(exposition((reading,)), nl=False)
