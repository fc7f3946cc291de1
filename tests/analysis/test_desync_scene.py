"""What the flight recorders add to a scene: all ranks stand in a collective, and stacks name nobody."""

from pathlib import Path

import msgspec
import pytest

import scenes
from rankpatrol.analysis.crash import diagnose_crash
from rankpatrol.analysis.desync import ranks_to_ask_for_lines
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


def without_lines(recording):
    """The same as JSON tells it."""
    return msgspec.structs.replace(recording, entries=tuple(msgspec.structs.replace(each, frames=()) for each in recording.entries))


def look(name, *, frames=WAITS, at_s=1000.0, lines_of=()):
    """Four ranks that wait in a collective, with real recordings; lines of code were asked of some."""
    recorded = [parse_pickle((DATA / name / f"rank{number}.pickle").read_bytes()) for number in range(4)]
    ranks = [
        msgspec.structs.replace(
            scenes.rank(number, scenes.process(100 + number), scenes.stack(100 + number, *frames)),
            recording=recorded[number] if number in lines_of else without_lines(recorded[number]),
            marks=MARKS,
        )
        for number in range(4)
    ]
    return scenes.snapshot(*ranks, at_s=at_s)


def twice(name, lines_of=()):
    return look(name, lines_of=lines_of), look(name, at_s=1002.0, lines_of=lines_of)


@pytest.mark.parametrize(
    ("name", "cause", "culprits"),
    [("skip", "rank_missing_collective", (3,)), ("wrongop", "collective_mismatch_op", (3,)), ("opposite", "opposite_order", (1, 2))],
)
def test_two_unchanged_rounds_tell_what_stacks_cannot(name, cause, culprits):
    found = diagnose(twice(name))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", cause, culprits)


def test_a_circle_is_proved_and_a_skipped_collective_waits_for_patience_without_lines():
    assert diagnose(twice("opposite")).certainty is Certainty.PROVED
    assert diagnose(twice("skip")).certainty is Certainty.SUPPORTED


@pytest.mark.parametrize(
    ("name", "ranks"), [("skip", (0, 3)), ("wrongop", (0, 3)), ("one_rank_alone", (0, 1)), ("opposite", ()), ("ok", ())]
)
def test_lines_are_asked_of_one_rank_of_each_side_where_they_would_prove_something(name, ranks):
    assert ranks_to_ask_for_lines(twice(name)) == ranks
    assert ranks_to_ask_for_lines((look(name),)) == ()
    assert ranks_to_ask_for_lines(twice(name, ranks)) == ()


@pytest.mark.parametrize(
    ("name", "asked", "cause", "culprits", "place"),
    [
        ("skip", (0, 3), "rank_missing_collective", (3,), "<module> (train.py:25)"),
        ("wrongop", (0, 3), "collective_mismatch_op", (3,), "train_step (fr_hang.py:28)"),
        ("one_rank_alone", (0, 1), "rank_conditional_collective", None, "<module> (train.py:19)"),
    ],
)
def test_lines_of_one_rank_of_each_side_tell_a_skipped_call_from_one_under_a_condition(name, asked, cause, culprits, place):
    found = diagnose(twice(name, asked))
    assert (found.cause, found.culprit_ranks, found.place) == (cause, culprits, place)
    assert diagnose(twice(name, asked[:1])).certainty is Certainty.SUPPORTED


@pytest.mark.parametrize(("name", "asked"), [("skip", (0, 3)), ("one_rank_alone", (0, 1))])
def test_with_lines_it_is_proved(name, asked):
    assert diagnose(twice(name, asked)).certainty is Certainty.PROVED


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
    assert diagnose_crash(departed("of which nothing is known")).certainty is Certainty.SUPPORTED


def test_a_rank_that_left_is_cleared_where_the_others_wait_in_groups_without_it():
    assert diagnose_crash(departed("1:own")) is None
    assert diagnose((departed("1:own"), departed("1:own"))).culprit_ranks is None


def test_a_rank_that_left_is_not_cleared_while_anything_else_is_open_in_a_group_with_it():
    seen = departed("1:own")
    recording = seen.ranks[0].recording
    sent = msgspec.structs.replace(recording.entries[0], group="default_pg", is_p2p=True)
    waits = msgspec.structs.replace(seen.ranks[0], recording=msgspec.structs.replace(recording, entries=(sent, *recording.entries)))
    assert diagnose_crash(msgspec.structs.replace(seen, ranks=(waits, seen.ranks[1]))).certainty is Certainty.SUPPORTED
