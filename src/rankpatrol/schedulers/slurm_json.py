"""`squeue --json` and `scontrol show job --json`, in the shapes of 22.05 and of 24.11. Pure.

22.05 writes `"job_state": "RUNNING"` and plain numbers; 24.11 `["RUNNING"]` and `{"set": …, "infinite": …, "number": …}`.
"""

from typing import Any

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState, JobStatus
from rankpatrol.schedulers.slurm_words import is_held, nodes_of, state_of


def read_json(data: bytes) -> tuple[JobStatus, ...]:
    """The jobs of one document. Raises BadInput where it is none; 22.05 prints all jobs, whichever are asked for."""
    try:
        document = msgspec.json.decode(data)
    except msgspec.MsgspecError as problem:
        raise BadInput(f"this is not JSON of squeue: {problem}", help="Give what `squeue --json` prints, whole.") from problem
    rows = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise BadInput("this is not JSON of squeue: it has no jobs", help="Give what `squeue --json` prints, whole.")
    found = (_job(row) for row in rows if isinstance(row, dict))
    return tuple(job for job in found if job is not None)


def _job(row: dict[str, Any]) -> JobStatus | None:
    number = _number(row.get("job_id"))
    if number is None:
        return None
    words = row.get("job_state")
    states = tuple(str(word) for word in words) if isinstance(words, list) else (str(words),)
    state, reason, limit_minutes = state_of(states), str(row.get("state_reason") or ""), _number(row.get("time_limit"))
    starts, waits = _time(row.get("start_time")), state is JobState.PENDING
    array, task = _number(row.get("array_job_id")), _number(row.get("array_task_id"))
    return JobStatus(
        job=f"{array}_{task}" if array and task is not None else str(number),
        local_id=str(number),
        state=state,
        said="+".join(states),
        reason=reason if reason != "None" else "",
        restarts=_number(row.get("restart_cnt")),
        queued_unix_s=_time(row.get("submit_time")),
        started_unix_s=None if waits else starts,
        expected_unix_s=starts if waits else None,
        ends_unix_s=_time(row.get("end_time")),
        time_limit_s=None if limit_minutes is None else limit_minutes * 60.0,
        nodes=nodes_of(str(row.get("nodes") or "")),
        avoided=nodes_of(str(row.get("excluded_nodes") or "")),
        held=waits and is_held(reason),
        is_batch=_flag(row.get("batch_flag")),
        may_requeue=_flag(row.get("requeue")),
        world_size=_number(row.get("tasks")),
    )


def _number(value: Any) -> int | None:
    """A number of either shape; None where it is not set, or without bound."""
    match value:
        case bool():
            return None
        case int():
            return value
        case {"set": True, "infinite": False, "number": int(number)}:
            return number
        case _:
            return None


def _time(value: Any) -> float | None:
    number = _number(value)
    return float(number) if number else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
