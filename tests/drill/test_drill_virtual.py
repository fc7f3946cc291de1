"""A drill in virtual time: steps of minutes are left alone, and a rank that sleeps among them is not."""

from pathlib import Path

import msgspec
import pytest

from rankpatrol.drill.faults import make
from rankpatrol.drill.outcome import Bars, Outcome
from rankpatrol.drill.runner import Settings, play
from rankpatrol.drill.scene import draw
from rankpatrol.drill.score import score


def played(folder: Path, fault_id: str) -> Outcome:
    return play(make(fault_id), draw(folder, seed="a", ranks=4), Settings(), run_number=0, seed="a")


@pytest.mark.timeout(60)
def test_steps_of_minutes_are_left_alone_and_a_rank_that_sleeps_among_them_is_not(tmp_path: Path) -> None:
    quiet, stuck = played(tmp_path / "quiet", "N12"), played(tmp_path / "stuck", "N12-F5")
    fault = make("N12-F5")
    bars = Bars(suspect_s=fault.suspect_s, ended_s=fault.ended_s)
    assert score(quiet, bars).complaints == ()
    assert score(stuck, bars).complaints == ()
    wrong = msgspec.structs.replace(quiet, events=stuck.events)
    assert any("the training was healthy, yet" in complaint for complaint in score(wrong, bars).complaints)
    assert score(msgspec.structs.replace(stuck, events=quiet.events), bars).complaints
