"""`rankpatrol pause`, `unpause` and `act`: nobody acts, acts again, and a person's yes."""

import time
from pathlib import Path
from typing import Any

import click

from rankpatrol.cli.job_state import JobState
from rankpatrol.cli.jobs import STALE_S, find_job, read_state, run_dir_named, run_dir_of
from rankpatrol.cli.paths import GivenPath
from rankpatrol.cli.words import say, say_json
from rankpatrol.core.durations import say_duration
from rankpatrol.core.errors import BadInput, ExitCode, UsageProblem
from rankpatrol.journal import read_events
from rankpatrol.launch.pauses import Pause, job_switch, lift_pause, machine_switch, read_pause, set_pause, who_asks
from rankpatrol.launch.rundir import Answer, RunDir

_job_dir = click.argument("job_dir", type=GivenPath(), required=False, metavar="[JOBDIR]")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
# A fresh look, a seal, the end of the attempt: half a minute on a slow machine, and the last of it a rank's own clean-up.
_DONE_WITHIN_S = 90.0
_POLL_S = 0.2


@click.command(short_help="Stop every action: nobody acts, watching goes on.")
@_job_dir
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who find the switch later.  [default: none]")
@_json
def pause(job_dir: Path | None, why: str, *, as_json: bool) -> None:
    """Stop every action of the job in JOBDIR (or by its id); without it, of all jobs of this user on this machine, also of those to come.

    Watching, alerts, verdicts and sealing go on. An action that has begun is finished.
    """
    switch, scope = _switch(job_dir)
    asked = Pause(since_unix_s=time.time(), by=who_asks(), why=why, scope=scope)
    standing = set_pause(switch, asked)
    if as_json:
        say_json({"paused": standing, "switch": str(switch), "new": standing == asked})
        return
    whom = f"the job in {job_dir}" if job_dir else "all jobs of this user on this machine"
    if standing != asked:
        say(f"{whom}: paused already, for {say_duration(max(0.0, time.time() - standing.since_unix_s))}, by {standing.by}")
    else:
        say(f"{whom}: nobody acts until: rankpatrol unpause{f' {job_dir}' if job_dir else ''}")


@click.command(short_help="Let jobs be acted upon again.")
@_job_dir
@_json
def unpause(job_dir: Path | None, *, as_json: bool) -> None:
    """Let the job in JOBDIR be acted upon again; without it, all jobs of this user on this machine.

    What was judged meanwhile is looked at again first, and acted upon only where it still holds.
    """
    switch, scope = _switch(job_dir)
    lifted = lift_pause(switch, scope)
    other = read_pause(machine_switch(), "machine") if job_dir else None
    if as_json:
        say_json({"lifted": lifted, "still_paused": other})
        return
    whom = f"the job in {job_dir}" if job_dir else "all jobs of this user on this machine"
    say(f"{whom}: {'was not paused' if lifted is None else 'acted upon again'}")
    if other is not None:
        say(f"all jobs of this user are still paused, by {other.by}: rankpatrol unpause")


@click.command(short_help="Answer yes to what a job asks (--policy ask).")
@click.argument("job_dir", type=GivenPath(), metavar="JOBDIR")
@click.argument("incident", type=click.IntRange(min=1))
@click.option("--yes", is_flag=True, help="Do it. Without it, only what would be done is said.")
@_json
def act(job_dir: Path, incident: int, *, yes: bool, as_json: bool) -> int:
    """Answer yes to the question of INCIDENT in JOBDIR (--policy ask): what would be done is done, where the picture is still the same.

    Exit code: 0 done, 1 refused or not asked to (no --yes), 2 tried in vain, 3 no word from the agent.
    """
    folder = find_job(job_dir)
    state, _ = read_state(folder)
    run_dir = run_dir_of(folder)
    question = _question(state, incident)
    if not yes:
        _say(as_json, {"done": None, "would": question, "why": ""}, f"would {question}; add --yes to have it done")
        return ExitCode.WARNING
    seen = len(_of_incidents(run_dir))
    if not run_dir.write_first("answer.json", Answer(incident=incident, by=who_asks(), at_unix_s=time.time())):
        raise BadInput("another answer is on its way", help="Look what came of it: rankpatrol why JOBDIR.")
    return _follow(run_dir, incident, seen, as_json=as_json)


def _switch(job_dir: Path | None) -> tuple[Path, str]:
    if job_dir is not None:
        return job_switch(run_dir_named(str(job_dir))), "job"
    try:
        return machine_switch(), "machine"
    except RuntimeError:
        raise UsageProblem(
            "this user has no home to keep the switch in",
            help="Set RANKPATROL_STATE_DIR, for the jobs and for this command, or name a JOBDIR.",
        ) from None


def _question(state: JobState, incident: int) -> str:
    """What would be done. Raises BadInput where nothing is asked, with the reason."""
    age_s = time.time() - state.at_unix_s
    if state.ended or age_s > STALE_S:
        ended = "" if state.ended == "ended" else f" ({state.ended})"
        what = f"the job has ended{ended}" if state.ended else f"no agent has reported for {say_duration(age_s)}"
        raise BadInput(f"{what}: nothing can be done", help="rankpatrol why JOBDIR tells its last incident.")
    seen = state.incident
    if seen is None or seen.stage == "closed":
        raise BadInput("no incident is open any more", help="Nothing was done. rankpatrol why JOBDIR tells how the last one closed.")
    if seen.incident != incident:
        raise BadInput(
            f"incident {seen.incident} is open now, not {incident}", help="Nothing was done. Read it first: rankpatrol why JOBDIR."
        )
    if seen.waits_for != "answer":
        raise BadInput(
            f"incident {incident} is {seen.stage} and asks nothing",
            help="Questions are asked under `run --policy ask`, once the evidence is sealed.",
        )
    stop = seen.diagnosis.verdict == "stop"
    return "end the job" if stop else f"end attempt {seen.attempt} and start the next one"


def _follow(run_dir: RunDir, incident: int, seen: int, *, as_json: bool) -> int:
    """Tell what the agent does about the answer, from the spool on the local disk."""
    until = time.monotonic() + _DONE_WITHIN_S
    while time.monotonic() < until:
        for event in _of_incidents(run_dir)[seen:]:
            seen += 1
            if event.get("incident") == incident and (told := _outcome(event)) is not None:
                code, why = told
                done = code == ExitCode.OK
                _say(as_json, {"done": done, "would": None, "why": why}, "done" if done else f"not done: {why}")
                return code
        time.sleep(_POLL_S)
    _say(as_json, {"done": None, "would": None, "why": "no word from the agent"}, f"no word from the agent within {_DONE_WITHIN_S:.0f} s")
    return ExitCode.UNKNOWN


def _of_incidents(run_dir: RunDir) -> list[dict[str, Any]]:
    """Only what belongs to an incident: a long job's spool is progress for the most part."""
    return list(read_events(run_dir.spool, about=b'"incident"'))


def _outcome(event: dict[str, Any]) -> tuple[ExitCode, str] | None:
    """What an event says of the answer, or None where it is not the end of it."""
    match event:
        case {"kind": "answer_refused" | "action_refused", "why": str(why)}:
            return ExitCode.WARNING, why
        case {"kind": "action_held", "by": str(by)}:
            return ExitCode.WARNING, f"actions are paused by {by}"
        case {"kind": "action", "done": False, "why": str(why)}:
            return ExitCode.CRITICAL, why
        case {"kind": "action", "done": True, "what": "end_attempt" | "end_job"}:
            return ExitCode.OK, ""
        case {"kind": "incident_closed", "how": str(how)}:
            return ExitCode.WARNING, f"the incident has closed: {how}"
    return None


def _say(as_json: bool, document: dict[str, Any], line: str) -> None:
    if as_json:
        say_json(document)
    else:
        say(line)
