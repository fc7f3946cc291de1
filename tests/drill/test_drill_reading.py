"""What the drill reads: events, steps, the truth file."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.records import Missing
from rankpatrol.drill.events import EventFile
from rankpatrol.drill.runner import onset
from rankpatrol.drill.steps import StepWatch
from rankpatrol.drill.truth import Truth, read_truth, write_truth


def test_a_line_still_being_written_waits_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = EventFile(path)
    assert journal.look() == []
    path.write_text('{"at_unix_s": 1.0, "kind": "progress", "step": 1}\n{"at_unix_s": 2.0, "ki')
    assert [event.step for event in journal.look()] == [1]
    with path.open("a") as more:
        more.write('nd": "progress", "step": 2}\n')
    assert [event.step for event in journal.look()] == [2]
    assert journal.unreadable == 0


def test_unknown_fields_are_passed_over_and_broken_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"at_unix_s": 1.0, "kind": "queued", "since": 3, "novel": {}}\nnot json\n[1]\n')
    journal = EventFile(path)
    assert [event.kind for event in journal.look()] == ["queued"]
    assert journal.unreadable == 2


@given(st.lists(st.integers(1, 200), min_size=1, unique=True), st.lists(st.integers(1, 40), min_size=1))
def test_steps_are_found_however_the_writes_are_cut(steps: list[int], cuts: list[int]) -> None:
    text = "".join(f"[default0]:step {step}/200 loss 0.123 (0.21 s)\n" for step in steps).encode()
    watch = StepWatch()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        at = turn = 0
        while at < len(text):
            size = cuts[turn % len(cuts)]
            with path.open("ab") as log:
                log.write(text[at : at + size])
            at, turn = at + size, turn + 1
            watch.look([path], at_unix_s=float(turn))
    assert set(watch.first_seen_unix_s) == set(steps)
    assert watch.last == max(steps)


def test_the_first_sight_of_a_step_counts(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("step 3/9 loss 0.1 (0.2 s)\n")
    watch = StepWatch()
    watch.look([log, tmp_path / "not there"], at_unix_s=10.0)
    with log.open("a") as more:
        more.write("step 4/9 loss 0.1 (0.2 s)\n")
    watch.look([log], at_unix_s=11.0)
    watch.note(4, 10.5)
    watch.note(3, 12.0)
    assert watch.first_seen_unix_s == {3: 10.0, 4: 10.5}


def test_truth_that_was_never_written_says_that_the_fault_never_struck(tmp_path: Path) -> None:
    assert read_truth(tmp_path / "truth.json") == Missing("the fault never struck")


def test_truth_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    path.write_text('{"rank": "three"}')
    assert isinstance(read_truth(path), Missing)


@pytest.mark.parametrize("truth", [Truth(), Truth(rank=3, step=17, at_unix_s=1.5, pids=(4711, 4712), until_unix_s=2.5)])
def test_truth_comes_back_as_it_was_written(tmp_path: Path, truth: Truth) -> None:
    write_truth(tmp_path / "truth.json", truth)
    assert read_truth(tmp_path / "truth.json") == truth


def test_the_onset_is_the_injectors_time_else_the_last_step_before() -> None:
    assert onset(Truth(rank=1, step=17, at_unix_s=5.0), {16: 4.0}) == 5.0
    assert onset(Truth(rank=1, step=17), {15: 3.0, 16: 4.0}) == 4.0
    assert isinstance(onset(Truth(rank=1, step=17), {15: 3.0}), Missing)
    assert isinstance(onset(Truth(), {15: 3.0}), Missing)
    assert isinstance(onset(Missing("the fault never struck"), {16: 4.0}), Missing)
