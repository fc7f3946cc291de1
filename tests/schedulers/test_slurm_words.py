"""Slurm's words become ours, unknown ones UNKNOWN; nothing hostile is put on a command line."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.errors import BadInput
from rankpatrol.core.jobs import JobState
from rankpatrol.schedulers.slurm_words import STATES, checked_job, checked_node, is_held, nodes_of, state_of, why_waiting


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        (["RUNNING"], JobState.RUNNING),
        (["PENDING", "COMPLETING"], JobState.ENDING),
        (["RUNNING", "COMPLETING"], JobState.ENDING),
        (["FAILED", "LAUNCH_FAILED"], JobState.ENDED),
        (["RUNNING", "SIGNALING"], JobState.RUNNING),
        (["PENDING", "REQUEUE_HOLD"], JobState.PENDING),
        ("A_NEW_WORD", JobState.UNKNOWN),
        (["RUNNING", "A_NEW_WORD"], JobState.UNKNOWN),
        ([], JobState.UNKNOWN),
    ],
)
def test_one_state_comes_of_all_words_of_a_job(words, state):
    assert state_of(words) is state


@given(st.lists(st.text(alphabet=string.ascii_uppercase + "_", max_size=20), min_size=1, max_size=4))
def test_a_job_is_never_said_to_run_by_a_word_that_is_not_known(words):
    if not set(words) <= STATES.keys():
        assert state_of(words) is JobState.UNKNOWN


@pytest.mark.parametrize("job", ["1", "8123", "8123_4", "8123+1", "4294967295"])
def test_ids_that_slurm_gives_are_taken(job):
    assert checked_job(job) == job


@pytest.mark.parametrize(
    "job", ["", "0", "-1", "--all", "1,2", "1 2", "1;reboot", "8123\n", "8_[1-3]", "1_", "n1", "٣", "9" * 11, "-u root", "8123=Requeue"]
)
def test_anything_else_is_refused(job):
    with pytest.raises(BadInput, match="is not a Slurm job id"):
        checked_job(job)


@pytest.mark.parametrize("node", ["", "-n1", "n1,n2", "n[1-2]", "ALL ", "n1 State=DOWN", "a" * 300, "n1\n"])
def test_a_word_that_is_no_nodes_name_is_refused(node):
    with pytest.raises(BadInput, match="is not the name of a node"):
        checked_node(node)


@pytest.mark.parametrize(
    ("hostlist", "nodes"),
    [
        ("", ()),
        ("(null)", ()),
        ("n1", ("n1",)),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("gpu-[008-010],login", ("gpu-008", "gpu-009", "gpu-010", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-999999999]", ()),
        ("n[x]", ()),
        ("n[1-", ()),
        ("n 1", ()),
    ],
)
def test_a_hostlist_is_taken_apart(hostlist, nodes):
    assert nodes_of(hostlist) == nodes


@given(st.text(alphabet="nr0123456789[],- (", max_size=30))
def test_a_hostlist_of_any_kind_gives_names_alone(hostlist):
    assert all(checked_node(node) for node in nodes_of(hostlist))


def test_the_delay_after_a_requeue_is_explained_and_no_fault():
    assert "waits for its credentials" in why_waiting("BeginTime")
    assert why_waiting("Resources") == "it waits for free nodes"
    assert "down, drained" in why_waiting("Nodes required for job are DOWN, DRAINED or reserved")
    assert why_waiting("SomethingNew") == "Slurm says SomethingNew"


@pytest.mark.parametrize("reason", ["job requeued in held state", "JobHeldUser", "job_requeued_in_held_state", "(JobHeldAdmin)"])
def test_a_held_job_is_told_from_one_that_waits(reason):
    assert is_held(reason)
    assert not is_held("BeginTime")
