"""Incidents that nothing follows, beside those that something does."""

import pytest
from test_incident_desk import HANG, Hands, desk_in

from clocks import FakeClock
from rankpatrol.agent.asides import Asides
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import EvidenceError
from rankpatrol.core.snapshot import LogSample
from rankpatrol.journal import Journal, read_events
from rankpatrol.system.background import Courier

SLOW = Diagnosis(
    verdict="slow", cause="straggler", culprit_ranks=(1,), victim_ranks=(0,), certainty=Certainty.SUPPORTED, sentence="they wait for rank 1"
)


class Refusing(Hands):
    def seal(self, state, *, fresh, spare):
        raise EvidenceError("no space left")


def asides_in(folder, hands=None, number=None):
    clock = FakeClock()
    (folder / "job").mkdir(exist_ok=True)
    numbers = iter(range(1, 100))
    return Asides(Journal(folder, folder / "job", Courier("test"), clock), hands or Hands(), number or (lambda: next(numbers)), clock)


def kinds(folder):
    return [event["kind"] for event in read_events(folder)]


def log(*losses, lost=False, step=31):
    return LogSample(100, ("step",), step, losses, lost, step if lost else None)


def test_a_slow_job_is_told_once_and_sealed_and_nobody_acts(tmp_path):
    hands = Hands()
    asides = asides_in(tmp_path, hands)
    for _ in range(3):
        asides.tell(0, 1.8e9, SLOW)
    assert [state.diagnosis for state in asides.open()] == [SLOW]
    asides.close("recovered", "straggler")
    asides.tell(0, 1.8e9, SLOW)
    assert asides.open() == ()
    assert kinds(tmp_path) == ["verdict", "bundle_sealed", "incident_closed"]
    assert hands.deeds == ["seal"]
    verdict = next(iter(read_events(tmp_path)))
    assert (verdict["verdict"], verdict["culprit_ranks"], verdict["certainty"], verdict["incident"]) == ("slow", [1], "supported", 1)


def test_the_next_attempt_is_told_of_again(tmp_path):
    asides = asides_in(tmp_path)
    asides.tell(0, 1.8e9, SLOW)
    asides.close("ended")
    asides.tell(1, 1.8e9, SLOW)
    assert kinds(tmp_path).count("verdict") == 2


def test_evidence_that_cannot_be_sealed_stops_nothing(tmp_path):
    asides = asides_in(tmp_path, Refusing())
    asides.tell(0, 1.8e9, SLOW)
    asides.close("ended")
    assert kinds(tmp_path) == ["verdict", "seal_failed", "incident_closed"]


def test_a_slow_job_and_a_hang_have_numbers_of_their_own_and_the_hang_is_acted_upon(tmp_path):
    hands = Hands()
    desk = desk_in(tmp_path, hands)
    asides = asides_in(tmp_path, hands, desk.next_number)
    asides.tell(0, 1.8e9, SLOW)
    desk.suspect(0, 1.8e9, HANG)
    desk.judged(1.8e9, HANG)
    told = {event["incident"]: event["kind"] for event in read_events(tmp_path) if event["kind"] in {"verdict", "alert"}}
    assert sorted(told) == [1, 2]
    assert "recover" in hands.deeds


def test_a_new_agent_repeats_nothing_closes_what_is_open_and_gives_fresh_numbers(tmp_path):
    asides_in(tmp_path).tell(0, 1.8e9, SLOW)
    desk = desk_in(tmp_path, Hands())
    desk.adopt(tmp_path)
    successor = asides_in(tmp_path, number=desk.next_number)
    successor.adopt(tmp_path)
    successor.tell(0, 1.8e9, SLOW)
    assert kinds(tmp_path) == ["verdict", "bundle_sealed", "incident_closed"]
    assert desk.next_number() == 2
    again = asides_in(tmp_path)
    again.adopt(tmp_path)
    assert kinds(tmp_path).count("incident_closed") == 1


def test_a_lost_loss_is_an_alert_of_a_healthy_job_and_closes_when_numbers_come_again(tmp_path):
    asides = asides_in(tmp_path)
    asides.follow_losses(0, {0: log("0.41", "0.40")})
    assert kinds(tmp_path) == []
    for _ in range(3):
        asides.follow_losses(0, {0: log("0.40", "nan", lost=True), 1: log()})
    assert kinds(tmp_path) == ["alert", "bundle_sealed"]
    alert = next(iter(read_events(tmp_path)))
    assert (alert["cause"], alert["suspect_ranks"], alert["certainty"]) == ("loss_nan", [], "proved")
    assert "is nan since step 31" in alert["sentence"]
    assert alert["why"].endswith("0.40 nan")
    asides.follow_losses(0, {0: log("nan", "0.39")})
    assert kinds(tmp_path)[-1] == "incident_closed"
    asides.follow_losses(0, {0: log("0.39", "nan", lost=True)})
    assert kinds(tmp_path).count("alert") == 1


@pytest.mark.parametrize("logs", [{}, {0: log(step=None)}])
def test_logs_that_tell_no_loss_are_no_trouble(tmp_path, logs):
    asides_in(tmp_path).follow_losses(0, logs)
    assert kinds(tmp_path) == []
