"""Many runs as one table."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rankpatrol.drill.score import Score, not_run
from rankpatrol.drill.scorecard import Spread, rows, spread, table, to_json


def run(fault: str, number: int, suspect_s: float | None, *complaints: str) -> Score:
    good = not complaints
    return Score(
        fault=fault, run=number, seed="s", folder="/f", suspect_s=suspect_s, caught=good, named_rightly=good, complaints=complaints
    )


def test_a_row_counts_its_own_fault_only_and_keeps_the_order() -> None:
    first, second = rows([run("F6b", 0, 5.0), run("F5", 0, 4.0), run("F6b", 1, None, "never: the suspect was named")])
    assert (first.fault, first.runs, first.passed, first.named_rightly) == ("F6b", 2, 1, 1)
    assert first.suspect == Spread(5.0, 5.0, 5.0)
    assert first.verdict is None
    assert (second.fault, second.runs, second.passed) == ("F5", 1, 1)


def test_a_run_that_could_not_be_done_is_no_pass() -> None:
    (row,) = rows([not_run("F5", 0, "s", folder="/f", why="the drill itself failed: no space")])
    assert (row.runs, row.passed, row.caught) == (1, 0, 0)


def test_percentiles_are_values_that_were_measured() -> None:
    assert spread(float(value) for value in range(1, 11)) == Spread(5.0, 10.0, 10.0)
    assert spread([None, 3.0]) == Spread(3.0, 3.0, 3.0)
    assert spread([None]) is None


def test_where_nobody_is_to_blame_nothing_is_counted_as_caught() -> None:
    (row,) = rows([Score(fault="ends-well", run=0, seed="s", folder="/f", recovers=False)])
    assert (row.passed, row.caught, row.named_rightly) == (1, None, None)


@given(st.lists(st.floats(0, 1000), min_size=1))
def test_a_spread_is_ordered_and_within_the_runs(seconds: list[float]) -> None:
    seen = spread(seconds)
    assert seen is not None
    assert min(seconds) <= seen.p50_s <= seen.p95_s <= seen.max_s == max(seconds)


def test_table_and_json_tell_the_same() -> None:
    scores = [run("F5", 0, 4.0), run("F5", 1, 6.0, "wrong name")]
    shown = io.StringIO()
    Console(file=shown, width=160).print(table(scores))
    assert "4.0 / 6.0 / 6.0" in shown.getvalue()
    kept = json.loads(to_json(scores))
    assert kept["rows"][0]["suspect"] == {"p50_s": 4.0, "p95_s": 6.0, "max_s": 6.0}
    assert [one["complaints"] for one in kept["runs"]] == [[], ["wrong name"]]
