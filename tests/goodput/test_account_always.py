"""Whatever the events, the parts sum to the wall time, none is negative, and nothing is raised."""

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.core.records import Missing
from rankpatrol.goodput.account import account_of, runs_of
from rankpatrol.goodput.picture import draw
from rankpatrol.goodput.story import launch_of

START = 1_800_000_000.0
PHASES = ("starting", "training", "initialisation", "first_step", "train_step", "checkpoint", "evaluation", "compile", "teardown", "new")
ODD = (
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "7", "now"])
)
MOMENT = st.floats(0, 5000).map(lambda after: START + after)
FIELDS = {
    "job_started": {"command": st.just(["train"]), "ranks": st.integers(1, 64), "launched_unix_s": MOMENT},
    "attempt_started": {"ranks": st.just({"0": {"node": "a"}, "1": {"node": "b"}}), "scheduler_restarts": st.integers(0, 2)},
    "phase": {"rank": st.none() | st.integers(0, 3), "phase": st.sampled_from(PHASES)},
    "progress": {"step": st.integers(0, 300)},
    "signal": {"what": st.just("still")},
    "alert": {"incident": st.integers(1, 3), "suspect_ranks": st.lists(st.integers(0, 3), max_size=2), "onset_unix_s": MOMENT},
    "verdict": {"incident": st.integers(1, 3), "verdict": st.sampled_from(["hang", "crash", "stop"]), "onset_unix_s": MOMENT},
    "incident_closed": {"incident": st.integers(1, 3), "how": st.sampled_from(["recovered", "ended", "requeued", "dismissed"])},
    "attempt_ended": {"reason": st.sampled_from(["finished", "failed", "ordered"])},
    "resumed": {"step": st.none() | st.integers(0, 300)},
    "queued": {"since": MOMENT},
    "job_ended": {"exit_code": st.integers(0, 255)},
}


@st.composite
def events(draw_from):
    """One event of any kind, at any time; now and then a field holds what no rankpatrol would write."""
    kind = draw_from(st.sampled_from(sorted(FIELDS)))
    fields = {name: draw_from(values) for name, values in FIELDS[kind].items()}
    if fields and draw_from(st.integers(0, 9)) == 0:
        fields[draw_from(st.sampled_from(sorted(fields)))] = draw_from(ODD)
    return {"at_unix_s": draw_from(MOMENT), "kind": kind, "attempt": draw_from(st.integers(0, 4)), **fields}


@st.composite
def jobs(draw_from):
    """A job that could be: attempts one after another with what may happen in each, in order of time."""
    at_s, step, lines = START, 0, []

    def tell(kind, attempt, **fields):
        nonlocal at_s
        at_s += draw_from(st.floats(0, 300))
        lines.append({"at_unix_s": at_s, "kind": kind, "attempt": attempt, **fields})

    tell("job_started", 0, command=["train"], ranks=4)
    for attempt in range(draw_from(st.integers(1, 4))):
        tell("attempt_started", attempt, ranks={"0": {"node": "a"}, "1": {"node": "b"}}, scheduler_restarts=0)
        if attempt and draw_from(st.booleans()):
            step = draw_from(st.integers(0, step))
            tell("resumed", attempt, checkpoint="c", step=step)
        for _ in range(draw_from(st.integers(0, 6))):
            step += draw_from(st.integers(1, 50))
            tell(
                *draw_from(st.sampled_from([("progress", attempt), ("phase", attempt)])),
                step=step,
                phase=draw_from(st.sampled_from(PHASES)),
            )
        if draw_from(st.booleans()):
            onset_s = at_s - draw_from(st.floats(0, 400))
            tell("alert", attempt, incident=attempt, suspect_ranks=[1], onset_unix_s=onset_s)
            tell("verdict", attempt, incident=attempt, verdict="hang", culprit_ranks=[1], onset_unix_s=onset_s)
            tell("incident_closed", attempt, incident=attempt, how=draw_from(st.sampled_from(["recovered", "ended"])))
        tell("attempt_ended", attempt, reason=draw_from(st.sampled_from(["failed", "finished"])))
    tell("job_ended", attempt, exit_code=0)
    return lines


def content_of(lines):
    return "\n".join(json.dumps(line) for line in lines).encode()


def check(*contents):
    launches = [launch for place, content in enumerate(contents) if (launch := launch_of(f"job{place}", content, place)) is not None]
    for run in runs_of(launches):
        found = account_of(run)
        assert found.wall_s >= 0
        assert min(found.parts_s.values()) >= 0
        assert math.isclose(sum(found.parts_s.values()), found.wall_s, rel_tol=0.01, abs_tol=1e-6)
        durations = [
            each
            for card in found.cards
            for each in (
                card.time_to_detect_s,
                card.time_to_identify_s,
                card.time_to_recover_s,
                card.stall_s,
                card.recovery_s,
                card.lost_work_s,
            )
        ]
        assert all(each >= 0 for each in durations if not isinstance(each, Missing))
        assert all(saved.stall_saved_s >= 0 for card in found.cards for saved in card.prevented)
        draw(found)
    return launches


@given(jobs())
def test_a_job_that_could_be(lines):
    (launch,) = check(content_of(lines))
    assert launch.ended
    assert launch.remarks == ()


@given(st.lists(events(), max_size=25))
@settings(max_examples=300)
def test_any_events_in_any_order(lines):
    check(content_of(lines))


@given(jobs(), jobs(), st.floats(-1000, 5000))
def test_two_launches(first, second, later_s):
    moved = [line | {name: line[name] + later_s for name in ("at_unix_s", "onset_unix_s") if name in line} for line in second]
    check(content_of(first), content_of(moved))


@given(jobs(), st.integers(0, 4000), st.integers(0, 4000))
def test_a_file_cut_anywhere(lines, head, tail):
    content = content_of(lines)
    check(content[head : max(head, len(content) - tail)])


@given(jobs(), st.integers(0, 40), st.floats(0, 1e6))
def test_a_clock_that_is_set_back(lines, place, back_s):
    check(content_of([*lines[:place], *({**line, "at_unix_s": line["at_unix_s"] - back_s} for line in lines[place:])]))


@given(jobs(), st.randoms(use_true_random=False))
def test_lines_of_several_writers_in_any_order(lines, random):
    doubled = lines * 2
    random.shuffle(doubled)
    check(content_of(doubled))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_events(content):
    check(content)
