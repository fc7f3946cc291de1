"""The desk does what the incident machine says, in that order, and an agent that was killed anywhere goes on from the record."""

import json
from pathlib import Path

import msgspec
import pytest

from clocks import FakeClock
from rankpatrol.agent.answers import refusal
from rankpatrol.agent.desk import IncidentDesk
from rankpatrol.core.budget import Budget
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.errors import EvidenceError, PatrolError
from rankpatrol.core.starts import SuspectFile
from rankpatrol.incident.records import IncidentPolicy, IncidentState, Stage, WaitsFor
from rankpatrol.journal import Journal, read_events
from rankpatrol.launch.pauses import Pause
from rankpatrol.launch.rundir import Answer
from rankpatrol.system.background import Courier

HANG = Diagnosis(
    verdict="hang",
    cause="rank_blocked",
    culprit_ranks=(1,),
    certainty=Certainty.SUPPORTED,
    sentence="rank 1 sleeps",
    reasons_for=("it does",),
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


class Hands:
    """Records what it is asked to do; may be told to fail, or to die before or after one deed."""

    def __init__(self):
        self.deeds, self.full, self.refuses, self.dies_at, self.dies_after = [], 0, False, None, None
        self.pause, self.shows, self.said = None, HANG, []
        self.outlook, self.requeues, self.last = None, False, False

    def _do(self, deed):
        if deed == self.dies_at:
            raise Killed
        self.deeds.append(deed)
        if deed == self.dies_after:
            raise Killed

    def put_aside(self):
        self._do("put_aside")

    def seal(self, state, *, fresh, spare):
        self._do("seal spare" if spare else "seal")
        if self.full:
            self.full -= 1
            raise EvidenceError("no space left")
        return Path("/job/incidents") / state.bundle_name()

    def look_again(self):
        self._do("look again")
        return self.shows

    def paused(self):
        return self.pause

    def answer_command(self, incident):
        return f"rankpatrol act /job {incident} --yes"

    def recover(self, state, bundle, outlook):
        self.outlook = outlook
        self._do("recover")
        if self.refuses:
            raise PatrolError("stale")
        return self.requeues

    def is_last(self, attempt):
        return self.last

    def remember(self, state):
        self.remembered = state

    def announce(self, what, style):
        self.said.append(what)


def desk_in(folder, hands, *, budget=None, **policy):
    clock = FakeClock()
    shared = folder / "job"
    shared.mkdir(exist_ok=True)
    policy = IncidentPolicy(**{"act": True, "budget": budget or Budget(), **policy})
    return IncidentDesk(policy, Journal(folder, shared, Courier("test"), clock), hands, clock)


def play(desk):
    desk.suspect(0, 1.8e9, HANG)
    desk.judged(1.8e9, HANG)
    desk.attempt_ended(ordered=False)


def kinds(folder):
    return [event["kind"] for event in read_events(folder)]


def test_alert_seal_and_action_come_in_this_order(tmp_path):
    hands = Hands()
    play(desk_in(tmp_path, hands))
    assert hands.deeds == ["put_aside", "seal", "recover"]
    assert kinds(tmp_path) == ["alert", "verdict", "bundle_sealed", "incident_closed"]


def test_an_incident_that_ended_in_a_requeue_says_so(tmp_path):
    hands = Hands()
    hands.requeues = True
    play(desk_in(tmp_path, hands))
    assert [event["how"] for event in read_events(tmp_path) if event["kind"] == "incident_closed"] == ["requeued"]


CRASH = msgspec.structs.replace(HANG, verdict="crash", cause="unknown", not_to_be_ended="it ends by itself")


@pytest.mark.parametrize(
    ("last", "ask", "acts"), [(False, False, False), (True, False, True), (True, True, False)], ids=["starts again", "last", "asks"]
)
def test_a_crash_is_acted_upon_only_where_nothing_else_starts_its_ranks_again(tmp_path, last, ask, acts):
    hands = Hands()
    hands.last = last
    desk = desk_in(tmp_path, hands, ask=ask)
    desk.suspect(0, 1.8e9, CRASH)
    desk.judged(1.8e9, CRASH)
    assert ("recover" in hands.deeds) is acts


def test_observe_never_acts(tmp_path):
    hands = Hands()
    play(desk_in(tmp_path, hands, act=False))
    assert "recover" not in hands.deeds


PAUSE = Pause(since_unix_s=1.8e9, by="eve@node1", why="maintenance")


def hang(desk):
    desk.suspect(0, 1.8e9, HANG)
    desk.judged(1.8e9, HANG)


def test_a_paused_desk_tells_and_seals_and_does_not_act(tmp_path):
    hands = Hands()
    hands.pause = PAUSE
    hang(desk_in(tmp_path, hands))
    assert hands.deeds == ["put_aside", "seal"]
    assert kinds(tmp_path) == ["alert", "verdict", "bundle_sealed", "action_held"]


def test_after_the_pause_what_still_holds_is_sealed_again_and_acted_upon(tmp_path):
    hands = Hands()
    hands.pause = PAUSE
    desk = desk_in(tmp_path, hands)
    hang(desk)
    hands.pause = None
    desk.unpaused()
    assert hands.deeds == ["put_aside", "seal", "look again", "seal", "recover"]
    sealed = [event["path"] for event in read_events(tmp_path) if event["kind"] == "bundle_sealed"]
    assert sealed == ["/job/incidents/1", "/job/incidents/1.2"]


def test_after_the_pause_what_has_changed_is_told_and_left_alone(tmp_path):
    hands = Hands()
    hands.pause = PAUSE
    desk = desk_in(tmp_path, hands)
    hang(desk)
    hands.pause, hands.shows = None, Diagnosis(verdict="none", cause="healthy", sentence="all ranks work")
    desk.unpaused()
    assert "recover" not in hands.deeds
    assert kinds(tmp_path)[-2:] == ["action_refused", "incident_closed"]


def test_an_agent_started_again_while_paused_does_not_finish_the_action_of_its_forerunner(tmp_path):
    first = Hands()
    first.dies_at = "recover"
    with pytest.raises(Killed):
        hang(desk_in(tmp_path, first))
    second = Hands()
    second.pause = PAUSE
    desk = desk_in(tmp_path, second)
    desk.adopt(tmp_path)
    hang(desk)  # its own judge comes to the same verdict
    assert second.deeds == []
    assert kinds(tmp_path)[-1] == "action_held"
    third = Hands()
    desk = desk_in(tmp_path, third)
    desk.adopt(tmp_path)
    assert third.deeds == []
    desk.unpaused()
    assert third.deeds == ["look again", "seal", "recover"]


def test_a_verdict_that_is_judged_again_counts_once_for_the_brake(tmp_path):
    hands = Hands()
    hands.pause = PAUSE
    desk = desk_in(tmp_path, hands)
    desk.suspect(0, 1.8e9, HANG)
    for _ in range(3):
        desk.judged(1.8e9, HANG, step=21)
    assert [event["verdict"] for event in read_events(tmp_path) if event["kind"] == "verdict"] == ["hang"]


def test_a_question_names_the_exact_command_and_waits_for_its_answer(tmp_path):
    hands = Hands()
    desk = desk_in(tmp_path, hands, ask=True)
    hang(desk)
    question = list(read_events(tmp_path))[-1]
    assert (question["kind"], question["command"]) == ("question", "rankpatrol act /job 1 --yes")
    assert question["what"] == "end attempt 0 and start the next one"
    assert "recover" not in hands.deeds
    assert any("rankpatrol act /job 1 --yes" in line for line in hands.said)
    desk.answered_yes("eve@node1")
    assert hands.deeds[-3:] == ["look again", "seal", "recover"]


def test_a_question_outlives_its_agent_and_is_not_asked_twice(tmp_path):
    hang(desk_in(tmp_path, Hands(), ask=True))
    second = Hands()
    desk = desk_in(tmp_path, second, ask=True)
    desk.adopt(tmp_path)
    assert (second.deeds, kinds(tmp_path).count("question")) == ([], 1)
    desk.answered_yes("eve@node1")
    assert second.deeds == ["look again", "seal", "recover"]


@pytest.mark.parametrize(
    ("changes", "pause", "why"),
    [
        ({}, None, ""),
        ({"incident": 2}, None, "incident 2 is open now, not 1"),
        ({"waits_for": None}, None, "asks nothing"),
        ({}, PAUSE, "paused by eve@node1"),
        (None, None, "no incident is open"),
    ],
)
def test_an_answer_that_meets_no_question_is_refused_with_the_reason(changes, pause, why):
    asked = IncidentState(incident=1, attempt=0, stage=Stage.SEALED, onset_unix_s=1.8e9, diagnosis=HANG, waits_for=WaitsFor.ANSWER)
    incident = None if changes is None else msgspec.structs.replace(asked, **changes)
    said = refusal(Answer(incident=1, by="eve", at_unix_s=1.8e9), incident, pause)
    assert why in said
    assert bool(said) == bool(why)


def test_a_full_job_directory_is_sealed_beside_and_acted_upon(tmp_path):
    hands = Hands()
    hands.full = 1
    play(desk_in(tmp_path, hands))
    assert hands.deeds == ["put_aside", "seal", "seal spare", "recover"]


def test_nothing_is_ended_when_the_evidence_can_be_sealed_nowhere(tmp_path):
    hands = Hands()
    hands.full = 99
    desk = desk_in(tmp_path, hands)
    desk.suspect(0, 1.8e9, HANG)
    desk.judged(1.8e9, HANG)
    assert "recover" not in hands.deeds


def test_an_open_incident_is_not_begun_twice(tmp_path):
    desk = desk_in(tmp_path, Hands())
    desk.suspect(0, 1.8e9, HANG)
    desk.suspect(0, 1.8e9, HANG)
    assert kinds(tmp_path) == ["alert"]


def test_a_quiet_suspicion_is_told_only_when_it_comes_to_a_verdict(tmp_path):
    desk = desk_in(tmp_path, Hands())
    desk.suspect(0, 1.8e9, HANG, quiet=True)
    desk.progress_returned()
    assert kinds(tmp_path) == []
    desk.suspect(0, 1.8e9, HANG, quiet=True)
    desk.judged(1.8e9, HANG)
    assert kinds(tmp_path) == ["verdict", "bundle_sealed"]


def test_the_third_failure_of_one_kind_stops_the_job_also_when_an_agent_died_in_between(tmp_path):
    for attempt in range(3):
        desk = desk_in(tmp_path, Hands())
        desk.adopt(tmp_path)
        desk.suspect(attempt, 1.8e9, HANG)
        desk.judged(1.8e9, HANG, step=21)
        desk.attempt_ended(ordered=False)
    verdicts = [event["verdict"] for event in read_events(tmp_path) if event["kind"] == "verdict"]
    assert verdicts == ["hang", "hang", "stop"]


STUCK = msgspec.structs.replace(HANG, cause="data_loader_worker_stuck", file="/data/shard", file_offset_bytes=4096)


def test_what_a_stuck_loader_read_is_handed_to_the_next_attempt_and_told_when_it_comes_again(tmp_path):
    for attempt in range(3):
        hands = Hands()
        desk = desk_in(tmp_path, hands)
        desk.adopt(tmp_path)
        desk.suspect(attempt, 1.8e9, STUCK)
        desk.judged(1.8e9, STUCK, step=21 + attempt)
        desk.attempt_ended(ordered=False)
        assert hands.outlook.suspect_files == (SuspectFile(file="/data/shard", offset_bytes=4096),)
    told = [(event["verdict"], event["sentence"]) for event in read_events(tmp_path) if event["kind"] == "verdict"]
    assert told[1] == ("hang", "rank 1 sleeps; the second time at /data/shard")
    assert told[2][0] == "stop"
    assert told[2][1].startswith("the third time at /data/shard")


@pytest.mark.parametrize(("act", "pauses"), [(True, [None, None, 15]), (False, [None, None, None])])
def test_failures_one_soon_after_the_other_make_the_next_attempt_wait_unless_nobody_may_act(tmp_path, act, pauses):
    desk = desk_in(tmp_path, Hands(), act=act)
    found = []
    for attempt in range(3):
        desk.suspect(attempt, 1.8e9, HANG)
        desk.judged(1.8e9, HANG, step=attempt)
        desk.attempt_ended(ordered=False)
        until = desk.outlook().not_before_unix_s
        found.append(None if until is None else until - 1.8e9)
    assert found == pauses


def test_the_budget_is_the_one_that_the_user_gave(tmp_path):
    desk = desk_in(tmp_path, Hands(), budget=Budget(per_hour=3, first_pause_s=1.0, longest_pause_s=1.5))
    waits = []
    for attempt in range(4):
        desk.suspect(attempt, 1.8e9, HANG)
        desk.judged(1.8e9, HANG, step=attempt)
        waits.append((desk.outlook().not_before_unix_s or 1.8e9) - 1.8e9)
        desk.attempt_ended(ordered=False)
    assert waits == [0, 0, 1.0, 1.5]
    verdicts = [(event["verdict"], event["cause"]) for event in read_events(tmp_path) if event["kind"] == "verdict"]
    assert verdicts == [("hang", HANG.cause)] * 3 + [("stop", "repeated_failure")]


def test_incidents_are_counted_over_the_whole_job(tmp_path):
    desk = desk_in(tmp_path, Hands())
    play(desk)
    desk.suspect(1, 1.8e9, HANG)
    assert [event["incident"] for event in read_events(tmp_path) if event["kind"] == "alert"] == [1, 2]


@pytest.mark.parametrize("deed", ["put_aside", "seal", "recover"])
@pytest.mark.parametrize("moment", ["dies_at", "dies_after"])
def test_an_agent_killed_at_any_deed_is_followed_by_one_that_finishes_it(tmp_path, deed, moment):
    first = Hands()
    setattr(first, moment, deed)
    with pytest.raises(Killed):
        play(desk_in(tmp_path, first))
    second = Hands()
    desk = desk_in(tmp_path, second)
    desk.adopt(tmp_path)
    play(desk)
    assert kinds(tmp_path) == ["alert", "verdict", "bundle_sealed", "incident_closed"]
    assert "recover" in first.deeds + second.deeds


def test_events_are_one_json_object_a_line_with_the_contracts_fields(tmp_path):
    play(desk_in(tmp_path, Hands()))
    alert, verdict, sealed, closed = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert set(alert) == {
        "at_unix_s",
        "kind",
        "attempt",
        "incident",
        "why",
        "cause",
        "suspect_ranks",
        "awaited_ranks",
        "certainty",
        "sentence",
        "onset_unix_s",
    }
    assert set(verdict) == {
        *("at_unix_s", "kind", "attempt", "incident", "verdict", "cause", "culprit_ranks", "awaited_ranks", "certainty", "sentence"),
        "onset_unix_s",
    }
    assert set(sealed) == {"at_unix_s", "kind", "attempt", "incident", "path", "seconds"}
    assert (closed["kind"], closed["how"]) == ("incident_closed", "ended")
