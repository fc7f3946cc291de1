"""Many runs as one table."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rankpatrol.drill.faults.port import Expectation
from rankpatrol.drill.score import Score, not_run
from rankpatrol.drill.scorecard import Quiet, Spread, quiet, rows, spread, table, to_json


def run(fault: str, number: int, suspect_s: float | None, *complaints: str) -> Score:
    good = not complaints
    return Score(
        fault=fault,
        run=number,
        seed="s",
        folder="/f",
        expects=Expectation.RECOVERS,
        bar_s=15,
        suspect_s=suspect_s,
        caught=good,
        named_rightly=good,
        complaints=complaints,
    )


def test_a_row_counts_its_own_fault_only_and_keeps_the_order() -> None:
    first, second = rows([run("F6b", 0, 5.0), run("F5", 0, 4.0), run("F6b", 1, None, "never: the suspect was named")])
    assert (first.fault, first.runs, first.passed, first.named_rightly) == ("F6b", 2, 1, 1)
    assert first.suspect == Spread(5.0, 5.0, 5.0)
    assert first.verdict is None
    assert (second.fault, second.runs, second.passed) == ("F5", 1, 1)


def test_a_run_that_could_not_be_done_is_no_pass() -> None:
    (row,) = rows([not_run("F5", 0, "s", folder="/f", why="the drill itself failed: no space")])
    assert (row.runs, row.passed, row.caught, row.kind) == (1, 0, None, "?")


def test_a_run_that_could_not_be_done_beside_one_that_could_does_not_hide_the_row() -> None:
    (row,) = rows([not_run("F5", 0, "s", folder="/f", why="the drill itself failed: no space"), run("F5", 1, 4.0)])
    assert (row.runs, row.passed, row.caught, row.kind, row.bar_s) == (2, 1, 1, "hang", 15)


def test_percentiles_are_values_that_were_measured() -> None:
    assert spread(float(value) for value in range(1, 11)) == Spread(5.0, 10.0, 10.0)
    assert spread([None, 3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread([None]) is None


def test_where_nobody_is_to_blame_nothing_is_counted_as_caught() -> None:
    (row,) = rows([Score(fault="N3", run=0, seed="s", folder="/f", expects=Expectation.SILENT, alerts=2)])
    assert (row.kind, row.passed, row.caught, row.named_rightly, row.bar_s, row.alerts) == ("silence", 1, None, None, None, 2)


def test_every_expectation_has_a_word_in_the_scorecard() -> None:
    kinds = {rows([Score(fault="X", run=0, seed="s", folder="/f", expects=one)])[0].kind for one in Expectation}
    assert len(kinds) == len(Expectation)
    assert "?" not in kinds


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_a_spread_is_ordered_and_within_the_runs(seconds: list[float]) -> None:
    seen = spread(seconds)
    assert seen is not None
    assert min(seconds) <= seen.p50_s <= seen.p95_s <= seen.max_s == max(seconds)


def test_table_and_json_tell_the_same() -> None:
    scores = [run("F5", 0, 4.0), run("F5", 1, 6.0, "wrong name")]
    shown = io.StringIO()
    Console(file=shown, width=160).print(table(scores))
    assert "4.0/6.0/6.0" in shown.getvalue()
    kept = json.loads(to_json(scores))
    assert kept["rows"][0]["suspect"] == {"p50_s": 4.0, "p95_s": 6.0, "max_s": 6.0}
    assert [one["complaints"] for one in kept["runs"]] == [[], ["wrong name"]]


def test_a_full_row_fits_into_120_columns() -> None:
    scores = [
        Score(
            fault="F6b-open",
            run=number,
            seed="s",
            folder="/f",
            expects=Expectation.RECOVERS,
            bar_s=15,
            suspect_s=112.4,
            verdict_s=123.4,
            ended_s=134.5,
        )
        for number in range(10)
    ]
    shown = io.StringIO()
    Console(file=shown, width=120).print(table(scores))
    assert "…" not in shown.getvalue()
    assert shown.getvalue().count("/134.5") == 2


def silent(number: int, alerts: int, **facts: object) -> Score:
    plain = {"fault": "N3", "run": number, "seed": "s", "folder": "/f", "expects": Expectation.SILENT, "seconds": 900.0}
    return Score(**{**plain, "alerts": alerts, "false_alerts": alerts, **facts})  # type: ignore[arg-type]


def test_alerts_that_closed_by_themselves_are_counted_by_the_hour_of_quiet_training_on_real_ranks() -> None:
    scores = [silent(0, 1), silent(1, 2), silent(2, 9, virtual=True), run("F5", 0, 4.0)]
    assert quiet(scores) == Quiet(runs=2, hours=0.5, false_alerts=3, false_alerts_per_hour=6.0)
    assert json.loads(to_json(scores))["quiet"]["false_alerts_per_hour"] == 6.0
    shown = io.StringIO()
    Console(file=shown, width=120).print(table(scores))
    assert "6.0 an hour" in shown.getvalue()


def test_where_nothing_was_quiet_nothing_is_told_by_the_hour() -> None:
    assert quiet([run("F5", 0, 4.0)]) == Quiet(runs=0, hours=0.0, false_alerts=0, false_alerts_per_hour=None)
