"""What the flight recorders add to a scene: all ranks stand in a collective, and stacks name nobody."""

from pathlib import Path

import msgspec
import pytest

import scenes
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.diagnose import diagnose
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Collective, FlightRecording, Marks, ProcessGroup, SystemCall
from rankpatrol.formats.flight_recorder import parse_pickle

DATA = Path(__file__).parent.parent / "data" / "flight_recorder"
TORCH = "/env/lib/python3.11/site-packages/torch"
WAITS = (("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3252), ("main", "/home/u/train.py", 60))
SLEEPS = (("wait_for_file", "/home/u/train.py", 20),)
DEFAULT = ProcessGroup(name="default_pg", backend="gloo", ranks=(0, 1, 2, 3), timeout_s=1800.0)
MARKS = Marks(steps=3, last_step_at_mono_s=1.0, phase="train_step", phase_since_mono_s=0.5, groups=(DEFAULT,))


def look(name, *, frames=WAITS, at_s=1000.0):
    """Four ranks that wait in a collective, with real recordings."""
    ranks = [
        msgspec.structs.replace(
            scenes.rank(number, scenes.process(100 + number), scenes.stack(100 + number, *frames)),
            recording=parse_pickle((DATA / name / f"rank{number}.pickle").read_bytes()),
            marks=MARKS,
        )
        for number in range(4)
    ]
    return scenes.snapshot(*ranks, at_s=at_s)


@pytest.mark.parametrize(
    ("name", "cause", "culprits"),
    [("skip", "rank_missing_collective", (3,)), ("wrongop", "collective_mismatch_op", (3,)), ("opposite", "opposite_order", None)],
)
def test_two_unchanged_rounds_tell_what_stacks_cannot(name, cause, culprits):
    found = diagnose((look(name), look(name, at_s=1002.0)))
    assert (found.verdict, found.cause) == ("hang", cause)
    if culprits is not None:
        assert found.culprit_ranks == culprits


def test_a_circle_is_proved_and_a_skipped_collective_waits_for_patience():
    assert diagnose((look("opposite"), look("opposite", at_s=1002.0))).certainty is Certainty.PROVED
    assert diagnose((look("skip"), look("skip", at_s=1002.0))).certainty is Certainty.SUPPORTED


def test_without_recordings_nobody_is_named():
    blind = look("skip")
    blind = msgspec.structs.replace(blind, ranks=tuple(msgspec.structs.replace(each, recording=Missing("no")) for each in blind.ranks))
    assert diagnose((blind, blind)).verdict == "undetermined"


def test_a_recording_is_one_more_reason_for_whom_the_stacks_named():
    first = look("hang")
    asleep = scenes.rank(3, scenes.process(103, call=SystemCall("clock_nanosleep")), scenes.stack(103, *SLEEPS))
    asleep = msgspec.structs.replace(asleep, recording=first.ranks[3].recording, marks=MARKS)
    seen = msgspec.structs.replace(first, ranks=(*first.ranks[:3], asleep))
    found = diagnose((seen, msgspec.structs.replace(seen, at_mono_s=1002.0)))
    assert (found.cause, found.culprit_ranks) == ("rank_blocked", (3,))
    assert any("flight recorder: rank 3 has not entered all_reduce 6" in reason for reason in found.reasons_for)


def departed(group):
    """Rank 0 waits in a collective of `group`; rank 1 has left with exit code 0."""
    pending = Collective(group=group, sequence=7, operation="all_reduce", is_p2p=False, state="scheduled", retired=False)
    alone = ProcessGroup(name="1:own", backend="gloo", ranks=(0,), timeout_s=60.0)
    waits = msgspec.structs.replace(
        scenes.rank(0, scenes.process(100), scenes.stack(100, *WAITS)),
        recording=FlightRecording(version="2.10", members={}, status={}, entries=(pending,)),
        marks=msgspec.structs.replace(MARKS, groups=(DEFAULT, alone)),
    )
    left = msgspec.structs.replace(scenes.rank(1, Missing("ended"), Missing("ended")), exit_status=0, ended_unix_s=1.8e9)
    return scenes.snapshot(waits, left)


def test_leaving_early_is_proved_only_by_a_live_rank_that_waits_in_a_group_with_the_departed_one():
    assert diagnose_crash(departed("default_pg")).certainty is Certainty.PROVED
    assert diagnose_crash(departed("1:own")).certainty is Certainty.SUPPORTED
