"""What the drills of slow and odd trainings demand."""

import json

import pytest
from test_drill_score import ONSET_UNIX_S, outcome

from rankpatrol.core.errors import CommandFailed
from rankpatrol.core.records import Missing
from rankpatrol.drill.events import Event
from rankpatrol.drill.faults import free_cpus, make
from rankpatrol.drill.faults.f17 import USUAL_STEPS
from rankpatrol.drill.faults.port import Expectation, Moment
from rankpatrol.drill.scene import draw
from rankpatrol.drill.score import Bars, score
from rankpatrol.drill.truth import Truth, read_truth

SLOW = {"incident": 1, "verdict": "slow", "cause": "straggler", "certainty": "supported", "onset_unix_s": ONSET_UNIX_S}


def event(kind, at_s, **fields):
    return Event(at_unix_s=ONSET_UNIX_S + at_s, kind=kind, **fields)


def told(*, culprit=(2,), at_s=9.0, cause="straggler", closed=True, more=()):
    story = [
        event("verdict", at_s, **{**SLOW, "cause": cause}, culprit_ranks=culprit),
        event("bundle_sealed", at_s + 1, incident=1, path="incidents/1"),
        *more,
    ]
    return (*story, event("incident_closed", at_s + 30, incident=1, how="recovered")) if closed else tuple(story)


def judged(expects, events, causes=("straggler",), **changes):
    return score(outcome(events, expects=expects, verdict="slow", causes=causes, resume_step=None, **changes), Bars(suspect_s=15.0))


def test_the_rank_that_is_named_in_time_passes():
    one = judged(Expectation.SLOWED_BY_ONE, told())
    assert one.complaints == ()
    assert (one.suspect_s, one.named_rightly, one.caught) == (9.0, True, True)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (told(culprit=(1,)), "but it is rank 2"),
        (told(culprit=None), "never: the suspect was named"),
        (told(at_s=16.0), "the bar is 15 s"),
        (told(cause="host_contention"), "no verdict slow / straggler"),
        (told(closed=False), "a verdict was never closed"),
        (told(more=(event("action", 12, incident=1, what="end_attempt"),)), "the training was healthy, yet: action"),
        (told(more=(event("verdict", 12, incident=2, verdict="hang", cause="spin", culprit_ranks=(2,)),)), "yet: verdict hang"),
    ],
)
def test_each_way_to_be_wrong_about_a_straggler_is_a_complaint(events, words):
    assert any(words in complaint for complaint in judged(Expectation.SLOWED_BY_ONE, events).complaints)


def test_nobody_may_be_named_where_nobody_is_to_blame():
    nobody = ("straggler_unattributable",)
    assert judged(Expectation.SLOWED, told(culprit=None, cause=nobody[0]), nobody, truth=Truth(step=100)).complaints == ()
    wrong = judged(Expectation.SLOWED, told(culprit=(2,), cause=nobody[0]), nobody, truth=Truth(step=100))
    assert any("nobody was to be named" in complaint for complaint in wrong.complaints)
    none = judged(Expectation.SLOWED, (), nobody, truth=Truth(step=100), bundles={})
    assert any("never: the job was called slow" in complaint for complaint in none.complaints)


def test_an_odd_training_wants_its_alert_and_nothing_else():
    alert = event("alert", 1.0, incident=1, cause="loss_nan", suspect_ranks=())
    sealed = event("bundle_sealed", 2.0, incident=1, path="incidents/1")
    closed = event("incident_closed", 20.0, incident=1, how="ended")
    assert judged(Expectation.ALERTED, (alert, sealed, closed), ("loss_nan",)).complaints == ()
    assert any("never closed" in each for each in judged(Expectation.ALERTED, (alert, sealed), ("loss_nan",)).complaints)
    assert any("never: an alert" in each for each in judged(Expectation.ALERTED, (sealed,), ("loss_nan",)).complaints)


@pytest.mark.parametrize("fault_id", ["F17-50", "F17-200", "F17-cpu", "F18"])
def test_a_slow_spell_begins_after_what_is_usual_is_known_and_ends_before_the_training(fault_id, tmp_path):
    fault = make(fault_id)
    scene = draw(tmp_path, seed="s", ranks=4, steps=fault.steps)
    scene.truth.parent.mkdir()
    plan = json.loads(fault.prepare(scene)["AT_CALL"])
    assert plan["call"] >= 100
    assert plan["call"] + plan["times"] + 20 <= fault.steps


def test_programs_that_take_the_cpus_are_gone_after_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    fault = make("F19")
    scene = draw(tmp_path, seed="s", ranks=4, steps=fault.steps)
    scene.truth.parent.mkdir()
    fault.strike(scene, Moment(step=3, keeper_pid=1))
    assert not scene.truth.exists()
    fault.strike(scene, Moment(step=200, keeper_pid=1))
    burners = list(fault._burners)
    fault.clear()
    fault.clear()
    assert burners
    assert all(burner.returncode is not None for burner in burners)
    assert read_truth(scene.truth).step == 201


@pytest.mark.parametrize("fault_id", ["F17-cpu", "F19"])
def test_where_others_have_taken_the_cpus_already_the_drill_says_so(fault_id, tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (1e4, 0.0, 0.0))
    monkeypatch.setattr(free_cpus, "pressure_s", lambda _: Missing("no pressure accounting"))
    scene, fault = draw(tmp_path, seed="s", ranks=4, steps=260), make(fault_id)
    fault.strike(scene, Moment(step=0, keeper_pid=1))
    with pytest.raises(CommandFailed, match="short of CPUs already"):
        fault.strike(scene, Moment(step=80, keeper_pid=1))


@pytest.mark.parametrize("fault_id", ["F17-cpu", "F19"])
def test_what_waits_for_a_cpu_before_the_fault_is_what_counts(fault_id, tmp_path, monkeypatch):
    waited_s = iter([5.0, 1e6])
    monkeypatch.setattr(free_cpus, "pressure_s", lambda _: next(waited_s))
    scene, fault = draw(tmp_path, seed="s", ranks=4, steps=260), make(fault_id)
    for step in (0, 40, USUAL_STEPS + scene.step - 30):
        fault.strike(scene, Moment(step=step, keeper_pid=1))
    with pytest.raises(CommandFailed, match="of the time before the fault something waited for one"):
        fault.strike(scene, Moment(step=USUAL_STEPS + scene.step, keeper_pid=1))
