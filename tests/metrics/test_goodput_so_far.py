"""Goodput while the job runs: the same as `rankpatrol goodput` says, at a bounded cost."""

import json
import sys
from pathlib import Path

import pytest

from rankpatrol.agent.goodput_so_far import GoodputSoFar
from rankpatrol.core.records import Missing
from rankpatrol.goodput.account import account_of
from rankpatrol.goodput.story import launch_of

START = 1_800_000_000.0
RECORDED = Path(__file__).parents[1] / "data" / "goodput" / "loader.jsonl"


def steps(begin_s, count, first=1, attempt=0):
    return [{"at_unix_s": START + begin_s + place, "kind": "progress", "attempt": attempt, "step": first + place} for place in range(count)]


def attempt(at_s, number, kind="attempt_started", **fields):
    ranks = {"ranks": {str(rank): {"node": "n0"} for rank in range(4)}} if kind == "attempt_started" else {}
    return {"at_unix_s": START + at_s, "kind": kind, "attempt": number, **ranks, **fields}


def fed(events):
    so_far = GoodputSoFar()
    for event in events:
        so_far.hear(event)
    return so_far


def test_a_recorded_job_is_counted_as_the_command_counts_it():
    content = RECORDED.read_bytes()
    so_far = fed(json.loads(line) for line in content.splitlines()).at(0.0, 0.0)
    account = account_of([launch_of("", content, 0)])
    assert so_far.parts_s == account.parts_s
    assert so_far.ratio == account.ettr_ratio
    card = account.cards[-1]
    assert (so_far.last.detect_s, so_far.last.name_s, so_far.last.recover_s) == (
        card.time_to_detect_s,
        card.time_to_identify_s,
        card.time_to_recover_s,
    )


def test_a_long_job_is_counted_in_bounded_memory_and_as_exactly():
    events = [attempt(0, 0), *steps(1, 50_000)]
    exact = account_of([launch_of("", b"\n".join(json.dumps(event).encode() for event in events), 0)])
    so_far = fed(events)
    assert len(so_far._lines) < 5000
    assert so_far.at(0.0, START + 50_000).ratio == pytest.approx(exact.ettr_ratio, abs=1e-4)


def test_many_short_phases_are_thinned_out_as_well():
    events = [attempt(0, 0)]
    for minute in range(500):
        events += steps(1 + 60 * minute, 55, first=1 + 55 * minute)
        events += [
            attempt(56 + 60 * minute, 0, "phase", rank=None, phase="checkpoint"),
            attempt(60 + 60 * minute, 0, "phase", rank=None, phase="train_step"),
        ]
    exact = account_of([launch_of("", b"\n".join(json.dumps(event).encode() for event in events), 0)])
    so_far = fed(events)
    assert len(so_far._lines) < 6000
    counted = so_far.at(0.0, START + 30_000)
    assert counted.parts_s["checkpoint"] == pytest.approx(exact.parts_s["checkpoint"])
    assert counted.ratio == pytest.approx(exact.ettr_ratio, abs=1e-3)


def test_more_phases_than_can_be_kept_are_not_counted_rather_than_counted_wrongly():
    so_far = fed(attempt(second, 0, "phase", rank=0, phase="evaluation") for second in range(30_000))
    assert isinstance(so_far.at(0.0, START), Missing)
    assert sys.getsizeof(so_far._lines) < 1 << 20
    assert len(so_far._lines) < 21_000


def test_a_stall_goes_on_while_nothing_is_told():
    alert = attempt(60, 0, "alert", incident=1, cause="rank_blocked", suspect_ranks=[1], onset_unix_s=START + 55)
    so_far = fed([attempt(0, 0), *steps(1, 54), alert])
    assert so_far.at(0.0, START + 60).parts_s["stall"] == pytest.approx(5)
    assert so_far.at(600.0, START + 660).parts_s["stall"] == pytest.approx(605)


def test_it_counts_once_a_minute_and_a_young_job_more_often(monkeypatch):
    so_far = fed([attempt(0, 0), *steps(1, 9)])
    counted = []
    monkeypatch.setattr(so_far, "_count", lambda now: counted.append(now) or Missing("test"))
    for second in range(5):
        so_far.at(float(second), START + 10 + second)
    assert len(counted) == 5, "nothing known yet: tried again"
    monkeypatch.undo()
    so_far.at(10.0, START + 5000)
    before = so_far._latest
    assert so_far.at(69.0, START + 5059) is before
    assert so_far.at(70.5, START + 5060) is not before


def test_the_end_is_counted_at_once():
    so_far = fed([attempt(0, 0), *steps(1, 54)])
    so_far.at(0.0, START + 60)
    so_far.hear(attempt(61, 0, "attempt_ended", reason="finished"))
    so_far.hear(attempt(62, 0, "job_ended", exit_code=0, reason="finished"))
    assert sum(so_far.at(0.0, START + 9999).parts_s.values()) == pytest.approx(62), "and not beyond it"


def test_what_was_known_of_an_incident_stays_though_its_steps_are_thinned_out():
    alert = attempt(60, 0, "alert", incident=1, cause="rank_blocked", suspect_ranks=[1], onset_unix_s=START + 55)
    ended = [attempt(70, 0, "attempt_ended", reason="ended_by_rankpatrol"), attempt(80, 1)]
    resumed = attempt(81, 1, "resumed", checkpoint="/ckpt/10", step=10)
    so_far = fed([attempt(0, 0), *steps(1, 54), alert, *ended, resumed, *steps(82, 100, first=11, attempt=1)])
    first = so_far.at(0.0, START + 182).last
    assert first.recover_s == pytest.approx(82 + 44 - 55)
    for event in steps(182, 20_000, first=111, attempt=1):
        so_far.hear(event)
    assert so_far.at(9999.0, START + 20_182).last == first
