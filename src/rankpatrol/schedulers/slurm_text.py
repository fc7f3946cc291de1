"""What squeue and sacct print, read into our records. Pure.

Only fields that no user can write are asked for: a job's name may be "x JobState=RUNNING", and `scontrol show job` prints it as it is.
"""

import re

from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.core.records import Record
from rankpatrol.schedulers.slurm_words import is_held, nodes_of, state_of

# Fields of `squeue -O`, with a suffix and without a width: nothing is cut off. With SLURM_TIME_FORMAT=%s times are seconds of the epoch.
FIELDS = (
    "JobID",
    "JobArrayID",
    "State",
    "Reason",
    "RestartCnt",
    "BatchFlag",
    "Requeue",
    "NodeList",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "NumTasks",
    "SubmitTime",
)
JOBS_FORMAT = ",".join(f"{field}:|" for field in FIELDS)
# `-O` of 22.05 has no working name for the excluded nodes, `-o` has had %x for ever.
AVOIDED_FORMAT = "%i|%x"
STEPS_FORMAT = "%i|%N"
SACCT_FORMAT = "JobID,State,ExitCode,Start,End,NodeList"
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


class PastAttempt(Record, frozen=True, kw_only=True):
    """One row of `sacct --duplicates`: a run of the job, and how it ended. Times are None where it has none.

    `exit_status` is its batch script's, negative for a signal.
    """

    job: str
    said: str
    exit_status: int | None
    started_unix_s: float | None
    ended_unix_s: float | None
    nodes: tuple[str, ...]


def read_jobs(text: str) -> tuple[JobStatus, ...]:
    """The jobs of `squeue -h -O JOBS_FORMAT`; a line of another shape is left out.

    A task of an array is called 8123_4 and never by its other number: of one task of each array that is the whole array's.
    """
    rows = [[value.strip() for value in line.split("|")] for line in text.splitlines()]
    return tuple(_job(dict(zip(FIELDS, row, strict=False))) for row in rows if len(row) == len(FIELDS) + 1)


def read_avoided(text: str) -> dict[str, tuple[str, ...]]:
    """The excluded nodes of `squeue -h -o AVOIDED_FORMAT`, by job."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return {job: nodes_of(nodes) for job, bar, nodes in rows if bar}


def read_steps(text: str) -> tuple[str, ...]:
    """The steps of `squeue -h -s -o STEPS_FORMAT`: "8123.0 on n1, n2"."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return tuple(f"{step} on {', '.join(nodes_of(nodes)) or nodes}" for step, bar, nodes in rows if bar)


def read_attempts(text: str) -> tuple[PastAttempt, ...]:
    """The rows of `sacct -n -P -X --duplicates -o SACCT_FORMAT`, oldest first as Slurm prints them."""
    rows = [line.split("|") for line in text.splitlines()]
    return tuple(
        PastAttempt(
            job=row[0],
            said=row[1].split(" ")[0],
            exit_status=_exit_status(row[2], row[1]),
            started_unix_s=_time(row[3]),
            ended_unix_s=_time(row[4]),
            nodes=nodes_of(row[5]),
        )
        for row in rows
        if len(row) == 6
    )


def seconds_of(limit: str) -> float | None:
    """A time limit as squeue prints it (`1-02:03:04`, `30:00`), or None for UNLIMITED and what is none."""
    if (seen := _DURATION.fullmatch(limit)) is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in seen.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _job(row: dict[str, str]) -> JobStatus:
    state = state_of(row["State"])
    starts, waits = _time(row["StartTime"]), state is JobState.PENDING
    return JobStatus(
        job=row["JobArrayID"] or row["JobID"],
        local_id=row["JobID"],
        state=state,
        said=row["State"],
        reason=row["Reason"] if row["Reason"] != "None" else "",
        restarts=_number(row["RestartCnt"]),
        queued_unix_s=_time(row["SubmitTime"]),
        started_unix_s=None if waits else starts,
        expected_unix_s=starts if waits else None,
        ends_unix_s=_time(row["EndTime"]),
        time_limit_s=seconds_of(row["TimeLimit"]),
        nodes=nodes_of(row["NodeList"]),
        held=waits and is_held(row["Reason"]),
        is_batch=_flag(row["BatchFlag"]),
        may_requeue=_flag(row["Requeue"]),
        world_size=_number(row["NumTasks"]),
    )


def _exit_status(word: str, state: str) -> int | None:
    """Of sacct's `1:0` and `0:15`. It says `0:0` as well of what never came to its own end: a run that was requeued, or lost its node."""
    code, _, signal = word.partition(":")
    if word == "0:0" and state != "COMPLETED":
        return None
    if not (code.isdecimal() and signal.isdecimal()):
        return None
    return -int(signal) if int(signal) else int(code)


def _time(word: str) -> float | None:
    return float(word) if word.isdecimal() and word != "0" else None


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() else None


def _flag(word: str) -> bool | None:
    return {"0": False, "1": True}.get(word)
