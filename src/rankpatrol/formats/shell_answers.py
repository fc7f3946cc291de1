"""Commands with their answers below them, as a terminal shows them, put into one line each."""

import re

_SQUEUE = re.compile(r"^(?:[^$#>%]{0,60}[$#>%])?\s*squeue\b(?!\s*:)((?:[^:'\"]|'[^']*'|\"[^\"]*\")*)$")
_JOB_ROW = re.compile(r"^\s*(\d{2,})(_[\d\[]\S*)?\b(.*)$")
_HEADER = re.compile(r"^\s*(?:JOBID|ARRAY_JOB)\b")
_NO_ANSWER = re.compile(r"error|Unable|timed out|refused|not found", re.IGNORECASE)
_ENDED = re.compile(r"\b(?:COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|PREEMPTED|OUT_OF_MEMORY)\b")
_COUNT = re.compile(r"/proc/\d+/.*\bnvidia\b.*\bwc -l\s*$")
_SHOWN = re.compile(r"(?:-o|-O|--format|--Format)[= ]?(?:'[^']*'|\"[^\"]*\"|\S+)")


def with_answers(text: str) -> list[str]:
    """The lines of a text, squeue's rows as `squeue OPTIONS: JOB STATE` and counts of open devices as `fd PID: …`.

    An empty answer counts as one only where another prompt follows: at the end of a text it may be cut off.
    """
    lines = text.splitlines()
    out: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if found := _SQUEUE.match(line):
            answer, at = _until_prompt(lines, at)
            out += _queue(_SHOWN.sub("", found[1]).strip(), answer, ended=at < len(lines))
        elif _COUNT.search(line) and at < len(lines) and lines[at].strip().isdigit():
            out += _devices(re.findall(r"/proc/(\d+)/", line), int(lines[at]))
            at += 1
        else:
            out.append(line)
    return out


def _until_prompt(lines: list[str], at: int) -> tuple[list[str], int]:
    start = at
    while at < len(lines) and (_JOB_ROW.match(lines[at]) or _HEADER.match(lines[at]) or _NO_ANSWER.search(lines[at])):
        at += 1
    return lines[start:at], at


def _queue(options: str, answer: list[str], *, ended: bool) -> list[str]:
    rows = [found for line in answer if (found := _JOB_ROW.match(line))]
    if refused := [line for line in answer if _NO_ANSWER.search(line) and not _JOB_ROW.match(line)]:
        return [f"squeue {options}: {refused[0]}" if "Invalid job" in refused[0] else f"squeue: error: {refused[0]}"]
    # The number of an array's task is not what its processes have in SLURM_JOB_ID: then nobody can be told by it.
    if any(row[2] for row in rows):
        return ["squeue: error: Unable to contact slurm for the numbers of array tasks"]
    told = [f"squeue {options}: {row[1]}{f' {state[0]}' if (state := _ENDED.search(row[3])) else ''}" for row in rows]
    return told or ([f"squeue {options}: "] if ended or answer else [])


def _devices(pids: list[str], count: int) -> list[str]:
    if count == 0:
        return [f"fd {pid}: none of a GPU" for pid in pids]
    return [f"fd {pids[0]}: /dev/nvidia0"] if len(pids) == 1 else []
