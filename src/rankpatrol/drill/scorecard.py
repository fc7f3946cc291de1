"""Many runs as one table, for people and as JSON."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from rankpatrol.core.records import Record
from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.outcome import Score

_KINDS = {
    Expectation.RECOVERS: "hang",
    Expectation.NAMED: "hang, attached",
    Expectation.SUSPECTS: "hang, suspected",
    Expectation.CRASHES: "crash",
    Expectation.TIMES_OUT: "time-out",
    Expectation.LOOPS: "loop",
    Expectation.LAUNCHER_LOST: "launcher",
    Expectation.NOT_AGAIN: "zombie",
    Expectation.SLOWED_BY_ONE: "slow, by one",
    Expectation.SLOWED: "slow",
    Expectation.ALERTED: "healthy, odd",
    Expectation.SILENT: "silence",
    Expectation.ENDS_WELL: "healthy",
    Expectation.RELEASES: "orphans",
    Expectation.STOPS: "stopped",
    Expectation.KEEPS: "crash, stopped",
    Expectation.WOULD_END: "hang, virtual",
}


class Spread(Record, frozen=True):
    """Seconds over several runs: median, 95th percentile and maximum, each a value that was really measured (nearest rank)."""

    p50_s: float
    p95_s: float
    max_s: float


class Row(Record, frozen=True, kw_only=True):
    """One fault over all its runs. A spread is None where no run got so far, a count where there is nobody to name.

    `bar_s`: in how many seconds the suspect must be named. `alerts`: all that were raised; in a silence they cost nothing but sleep.
    """

    fault: str
    kind: str
    runs: int
    passed: int
    caught: int | None
    named_rightly: int | None
    alerts: int
    bar_s: float | None
    suspect: Spread | None
    verdict: Spread | None
    ended: Spread | None


class Quiet(Record, frozen=True, kw_only=True):
    """What people were told for nothing: alerts that closed by themselves, in runs in which nothing was wrong, real ranks alone."""

    runs: int
    hours: float
    false_alerts: int
    false_alerts_per_hour: float | None


def quiet(scores: Iterable[Score]) -> Quiet:
    """Over all silences and healthy runs together. None an hour where there is no hour."""
    seen = [one for one in scores if one.expects in {Expectation.SILENT, Expectation.ENDS_WELL} and not one.virtual]
    hours, alerts = sum(one.seconds for one in seen) / 3600, sum(one.false_alerts for one in seen)
    return Quiet(
        runs=len(seen), hours=round(hours, 4), false_alerts=alerts, false_alerts_per_hour=round(alerts / hours, 2) if hours else None
    )


def rows(scores: Iterable[Score]) -> tuple[Row, ...]:
    """One row a fault, in the order in which the faults came."""
    by_fault: dict[str, list[Score]] = {}
    for one in scores:
        by_fault.setdefault(one.fault, []).append(one)
    return tuple(_row(fault, runs) for fault, runs in by_fault.items())


def _row(fault: str, runs: Sequence[Score]) -> Row:
    blames = any(one.bar_s is not None for one in runs)
    return Row(
        fault=fault,
        kind=next((_KINDS[one.expects] for one in runs if one.expects is not None), "?"),
        runs=len(runs),
        passed=sum(one.passed for one in runs),
        caught=sum(one.caught for one in runs) if blames else None,
        named_rightly=sum(one.named_rightly for one in runs) if blames else None,
        alerts=sum(one.alerts for one in runs),
        bar_s=next((one.bar_s for one in runs if one.bar_s is not None), None),
        suspect=spread(one.suspect_s for one in runs),
        verdict=spread(one.verdict_s for one in runs),
        ended=spread(one.ended_s for one in runs),
    )


def spread(seconds: Iterable[float | None]) -> Spread | None:
    """The spread of those that are known."""
    known = sorted(value for value in seconds if value is not None)
    if not known:
        return None
    return Spread(*(known[max(0, math.ceil(share * len(known)) - 1)] for share in (0.5, 0.95, 1.0)))


def table(scores: Sequence[Score]) -> Table:
    """The scorecard; times are p50/p95/max in seconds from the onset."""
    told = quiet(scores)
    by_the_hour = f"{told.false_alerts} alerts that closed by themselves in {told.hours:.2f} h: {told.false_alerts_per_hour} an hour"
    caption = f"silences: {by_the_hour}" if told.runs else None
    shown = Table(title="seconds from the onset: p50/p95/max", caption=caption, box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("fault", "kind"):
        shown.add_column(heading, no_wrap=True)
    for heading in ("runs", "passed", "caught", "named", "alerts", "bar", "suspect", "verdict", "ended"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows(scores):
        counts = ("-" if count is None else f"{count:g}" for count in _counts(row))
        shown.add_row(row.fault, row.kind, *counts, *map(_say, (row.suspect, row.verdict, row.ended)))
    return shown


def to_json(scores: Sequence[Score]) -> bytes:
    """Rows, every run, and what the silences cost together, ready to be kept."""
    return msgspec.json.format(msgspec.json.encode({"quiet": quiet(scores), "rows": rows(scores), "runs": list(scores)}), indent=2) + b"\n"


def read_runs(path: Path) -> tuple[Score, ...]:
    """The runs of an earlier scorecard; none where there is no such file, or not a whole one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Kept).runs
    except (OSError, msgspec.MsgspecError):
        return ()


class _Kept(Record, frozen=True):
    runs: tuple[Score, ...]


def _say(seen: Spread | None) -> str:
    return "-" if seen is None else f"{seen.p50_s:.1f}/{seen.p95_s:.1f}/{seen.max_s:.1f}"


def _counts(row: Row) -> tuple[float | None, ...]:
    return row.runs, row.passed, row.caught, row.named_rightly, row.alerts, row.bar_s
