"""What the agent knows of the two switches, also when the folder of one of them does not answer."""

import os
import threading
import time

import pytest

import rankpatrol.agent.switches as switches_module
from rankpatrol.agent.switches import Switches
from rankpatrol.launch.pauses import Pause, job_switch, lift_pause, machine_switch, set_pause
from rankpatrol.launch.rundir import RunDir

PAUSE = Pause(since_unix_s=1.8e9, by="eve@node1", why="maintenance", scope="machine")


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("RANKPATROL_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


def test_either_switch_pauses_and_the_jobs_own_is_told_first(run_dir):
    switches = Switches(run_dir)
    assert switches.now(5.0) is None
    set_pause(machine_switch(), PAUSE)
    assert switches.now(5.0) == PAUSE
    set_pause(job_switch(run_dir), Pause(since_unix_s=1.9e9, by="bob@node1"))
    assert switches.latest().by == "bob@node1"
    lift_pause(job_switch(run_dir), "job")
    assert switches.now(5.0) == PAUSE
    lift_pause(machine_switch(), "machine")
    assert switches.now(5.0) is None


@pytest.fixture
def dead_mount(monkeypatch):
    """The state directory answers as often as is said, and then no more until the test is over."""
    over, answers = threading.Event(), []

    def read():
        if answers:
            return answers.pop()
        over.wait(20)
        return None

    monkeypatch.setattr(switches_module, "machine_pause", read)
    yield answers
    over.set()


@pytest.mark.usefixtures("dead_mount")
def test_a_state_directory_that_never_answered_holds_every_action_and_nobody_up(run_dir):
    switches = Switches(run_dir)
    began = time.monotonic()
    pause = switches.now(0.2)
    assert time.monotonic() - began < 2
    assert "does not answer" in pause.why


def test_what_was_last_read_stands_when_the_state_directory_hangs_later(run_dir, dead_mount):
    dead_mount += [None, None]
    switches = Switches(run_dir)
    assert switches.now(5.0) is None
    assert switches.now(0.2) is None


def test_a_switch_that_is_no_file_holds_every_action(run_dir):
    machine_switch().parent.mkdir()
    os.mkfifo(machine_switch())
    assert "no regular file" in Switches(run_dir).now(5.0).why


def test_a_user_without_a_home_has_no_switch_and_no_pause(run_dir, monkeypatch):
    monkeypatch.delenv("RANKPATROL_STATE_DIR")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert Switches(run_dir).now(5.0) is None
