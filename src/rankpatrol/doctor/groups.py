"""The process groups of a running job, and whether their own time-outs leave room for a judgement. Pure."""

import math

from rankpatrol.core.counts import say_count
from rankpatrol.core.durations import say_duration
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Marks, ProcessGroup
from rankpatrol.doctor.rows import Level, Row
from rankpatrol.doctor.subject import JobFacts

# torch's defaults: kProcessGroupNCCLDefaultTimeout for NCCL, default_pg_timeout for the others. new_group does not inherit the first's.
_DEFAULTS_S = {600.0: "NCCL's default", 1800.0: "the default of gloo and others"}
# What a seal takes beyond patience, with a slow disk.
_MARGIN_S = 30.0


def judge_groups(job: JobFacts) -> tuple[Row, ...]:
    """A group that gives up before patience is over ends the job by itself, with victims that look like culprits."""
    seen = {rank: marks for rank, marks in job.marks.items() if isinstance(marks, Marks)}
    if not seen:
        reasons = sorted({marks.reason for marks in job.marks.values() if isinstance(marks, Missing)})
        return (
            Row(
                "groups",
                Level.UNKNOWN,
                f"the groups' time-outs are not known: {reasons[0] if reasons else 'no rank has registered'}",
                "They are read from the probe.",
            ),
        )
    groups = {(group.name, group.backend): group for marks in seen.values() for group in marks.groups}
    if not groups:
        return (Row("groups", Level.UNKNOWN, "no rank has made a process group yet", "Look again once it trains."),)
    rows = tuple(_row(group, job.spec.patience_s) for group in groups.values())
    unseen = sorted(set(job.marks) - set(seen))
    if unseen:
        rows = (
            *rows,
            Row(
                "groups",
                Level.UNKNOWN,
                f"ranks {', '.join(map(str, unseen))} have no marks: groups of theirs alone are not listed",
                "Is `python -I` or another interpreter in the way?",
            ),
        )
    return rows


def _row(group: ProcessGroup, patience_s: float) -> Row:
    name = f"group {group.name}" if group.name else "group (world)"
    who = f"{group.backend}, {say_count(len(group.ranks), 'rank')}"
    if group.timeout_s is None:
        return Row(
            name, Level.UNKNOWN, f"{who}: its time-out is not known", "Give one: init_process_group(timeout=…), new_group(timeout=…)"
        )
    default = _DEFAULTS_S.get(group.timeout_s)
    say = f"{who}: gives up after {say_duration(group.timeout_s)}" + (f" ({default})" if default else "")
    wanted_s = patience_s + _MARGIN_S
    if group.timeout_s < wanted_s:
        return Row(
            name,
            Level.WARNING,
            f"{say}, before patience is over ({say_duration(patience_s)}): torch ends the job first, and whom it names is a victim",
            f"timeout=timedelta(minutes={math.ceil(wanted_s / 60)}) or longer where the group is made, or a shorter --patience",
        )
    if default:
        return Row(
            name,
            Level.HINT,
            f"{say}; a rank that works for longer while the others wait (an evaluation, a checkpoint) ends the job",
            "Give every group your longest such phase and half as long again: init_process_group(timeout=…), new_group(timeout=…)",
        )
    return Row(name, Level.OK, say)
