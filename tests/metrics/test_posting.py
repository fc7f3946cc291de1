"""The agent's own side: what it counts over restarts, and what it does where the library is missing or a state is none."""

import sys

import msgspec
import pytest
from readings import STATE

from clocks import FakeClock
from rankpatrol.agent.metrics_post import NoMetrics, post_of
from rankpatrol.agent.status import _state
from rankpatrol.agent.teller import Teller
from rankpatrol.journal import read_events
from rankpatrol.judge.records import RankActivity
from rankpatrol.launch.rundir import JobSpec, RunDir


class Quiet:
    def __init__(self):
        self.said = []

    def say(self, what, style="plain"):
        self.said.append((what, style))


@pytest.fixture
def run_dir():
    made = RunDir.create()
    yield made
    made.remove()


def spec(folder, **fields):
    common = {"policy": "recover", "patience_s": 180.0, "checkpoints": None, "started_unix_s": 0.0, "command": ()}
    return JobSpec(job="job", job_dir=str(folder), **common, **fields)


def desk(tmp_path, run_dir, **fields):
    asked, clock, voice = spec(tmp_path, **fields), FakeClock(), Quiet()
    teller = Teller(asked, run_dir, clock, voice)
    return post_of(asked, teller, clock), teller, voice


def test_nobody_asked_so_nobody_listens(tmp_path, run_dir):
    post, teller, _ = desk(tmp_path, run_dir)
    assert isinstance(post, NoMetrics)
    assert teller.journal.listeners == []


def test_a_successor_goes_on_with_the_same_numbers_and_counts_each_event_once(tmp_path, run_dir):
    first, teller, _ = desk(tmp_path, run_dir, metrics_textfile=str(tmp_path))
    for _ in range(3):
        teller.journal.tell("alert", 0, incident=1)
    first.publish(msgspec.json.encode(STATE))
    second, teller, _ = desk(tmp_path, run_dir, metrics_textfile=str(tmp_path))
    second.adopt(read_events(run_dir.spool))
    teller.journal.tell("alert", 0, incident=2)
    second.publish(msgspec.json.encode(STATE))
    assert [reading.tally.alerts for post in (first, second) for reading in post.latest()] == [3, 4]
    first.leave()
    second.leave()


def test_what_is_no_state_leaves_the_last_reading_whose_age_tells(tmp_path, run_dir):
    post, _, _ = desk(tmp_path, run_dir, metrics_textfile=str(tmp_path))
    post.publish(msgspec.json.encode(STATE))
    before = post.latest()
    for spoiled in (b"", b"[]", b'{"at_unix_s": "now"}', b"\xff"):
        post.publish(spoiled)
    assert post.latest() is before
    post.leave()


def test_without_the_library_it_is_told_once_and_the_patrol_goes_on(tmp_path, run_dir, monkeypatch):
    for name in ("serving", "textfile"):
        monkeypatch.setitem(sys.modules, f"rankpatrol.metrics.{name}", None)
    post, teller, voice = desk(tmp_path, run_dir, metrics="127.0.0.1:0", metrics_textfile=str(tmp_path))
    teller.journal.tell("alert", 0, incident=1)
    post.publish(msgspec.json.encode(STATE))
    post.farewell()
    post.leave()
    ((what, style),) = voice.said
    assert style == "alert"
    assert "pip install '.[metrics]'" in what


@pytest.mark.parametrize(
    ("seen", "exit_status", "word"),
    [
        ({}, None, "starting"),
        ({"joined": True}, None, "training"),
        ({"joined": True, "stopped": True}, None, "stopped"),
        ({"joined": True, "stopped": True, "traced": True}, None, "traced"),
        ({"ended": True, "failed": True}, None, "gone"),
        ({"ended": True, "failed": True}, -9, "failed"),
        ({"ended": True}, 0, "ended"),
        (None, 0, "ended"),
        (None, None, None),
    ],
)
def test_the_word_for_a_rank_says_no_more_than_is_known(seen, exit_status, word):
    still = {
        "rank": 0,
        "ended": False,
        "joined": False,
        "traced": False,
        "stopped": False,
        "main_thread_ticks": 0,
        "switches": 0,
        "step": None,
    }
    assert _state(None if seen is None else RankActivity(**{**still, **seen}), exit_status) == word


def test_what_is_not_delivered_yet_is_counted(tmp_path, run_dir):
    _, teller, _ = desk(tmp_path / "not-there", run_dir)
    for _ in range(5):
        teller.journal.tell("alert", 0, incident=1)
    assert teller.courier.delivered(5.0)
    assert teller.journal.backlog() == 5, "the job directory took none"
    (tmp_path / "not-there").mkdir()
    teller.journal.tell("alert", 0, incident=1)
    assert teller.courier.delivered(5.0)
    assert teller.journal.backlog() == 0
