"""Who has joined its group: a training that stands is looked at within seconds, one that starts within a minute."""

import pytest

from rankpatrol.agent.joining import Joining
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Marks

NO_PROBE = Missing("no probe")
OLD, NEW = ("python",), ("python", "gloo_tcp_loop")


def marks(phase):
    return Marks(steps=0, last_step_at_mono_s=None, phase=phase, phase_since_mono_s=0.0, groups=())


def test_a_thread_of_its_group_tells_and_its_going_tells_too():
    seen = Joining()
    assert not seen.joined(0, OLD, NO_PROBE, steps_go_on=False)
    assert seen.joined(0, NEW, NO_PROBE, steps_go_on=False)
    assert not seen.joined(0, OLD, NO_PROBE, steps_go_on=True)
    seen.forget()
    assert seen.joined(0, OLD, NO_PROBE, steps_go_on=True), "another attempt, perhaps of another torch"


@pytest.mark.parametrize("steps_go_on", [False, True])
@pytest.mark.parametrize("phase", ["first_step", "train_step", "checkpoint", "evaluation", "compile"])
def test_where_no_thread_has_a_name_the_probe_tells(phase, steps_go_on):
    assert Joining().joined(0, OLD, marks(phase), steps_go_on=steps_go_on)
    assert not Joining().joined(0, OLD, marks("teardown"), steps_go_on=steps_go_on)
    assert not Joining().joined(0, OLD, marks("initialisation"), steps_go_on=False)


def test_where_there_is_no_probe_either_steps_in_any_log_tell():
    assert Joining().joined(3, OLD, NO_PROBE, steps_go_on=True)
    assert not Joining().joined(3, OLD, NO_PROBE, steps_go_on=False)
    assert Joining().joined(3, OLD, marks("initialisation"), steps_go_on=True), "a probe whose hooks met nothing"
