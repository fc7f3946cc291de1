"""The main job on real torch ranks: a hang or a crash is named, sealed and recovered from; what is neither is left alone."""

import json
import secrets

import msgspec
import pytest

from rankpatrol.drill.faults import make
from rankpatrol.drill.runner import Settings, play
from rankpatrol.drill.scene import draw
from rankpatrol.drill.score import Bars, score
from rankpatrol.evidence.manifest import load_manifest, verify

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(200)]
# Long enough for every rank and step that can be drawn, and for a checkpoint before it.
STEPS = 40


def run(fault_id, folder):
    """One run of a drill with a rank and a step drawn at random; a failure prints the seed that draws them again."""
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    scene = msgspec.structs.replace(draw(folder / fault_id, seed=seed, ranks=4), steps=STEPS)
    return scene, play(make(fault_id), scene, Settings(), run_number=0, seed=seed)


@pytest.mark.parametrize("fault_id", ["F5", "F6b", "F11"])
def test_a_hang_is_named_sealed_ended_and_the_training_finishes(tmp_path, fault_id):
    scene, outcome = run(fault_id, tmp_path)
    found = score(outcome, Bars())
    assert found.complaints == ()
    assert (found.caught, found.named_rightly, found.exit_code) == (True, True, 0)
    bundle = scene.job / "incidents" / "1"
    assert verify(bundle).problems == ()
    entries = {entry.rank: entry for entry in load_manifest(bundle).ranks}
    assert set(entries) == {0, 1, 2, 3}
    assert all("stack" in entry.captured or entry.missing["stack"] for entry in entries.values())
    assert all("log_tail" in entry.captured for entry in entries.values())
    assert "native" in entries[scene.rank].captured or entries[scene.rank].missing["native"]
    diagnosis = json.loads((bundle / "diagnosis.json").read_text())
    assert diagnosis["culprit_ranks"] == [scene.rank]
    if fault_id == "F6b":
        assert found.process_named
        assert diagnosis["file"] == str(scene.block())


def test_a_crash_is_named_with_its_cause_and_sealed_before_the_launcher_ends_the_others(tmp_path):
    scene, outcome = run("F1", tmp_path)
    found = score(outcome, Bars())
    assert found.complaints == ()
    bundle = scene.job / "incidents" / "1"
    entries = {entry.rank: entry for entry in load_manifest(bundle).ranks}
    assert all("stack" in entry.captured for rank, entry in entries.items() if rank != scene.rank)
    assert "ValueError" in (bundle / "ranks" / str(scene.rank) / "log_tail.txt").read_text()


@pytest.mark.parametrize("fault_id", ["ends-well", "exits-at-once", "ctrl-c", "N4b"])
def test_what_is_no_hang_is_left_alone(tmp_path, fault_id):
    _, outcome = run(fault_id, tmp_path)
    assert score(outcome, Bars()).complaints == ()
