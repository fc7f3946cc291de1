"""What a job is said to be in, as its ranks' probes mark it, or as it looks from outside."""

import pytest

from rankpatrol.agent.phases import phase_of_job


@pytest.mark.parametrize(
    ("marked", "phase"),
    [
        (["initialisation", "first_step"], "initialisation"),
        (["first_step", "compile"], "compile"),
        (["train_step", "train_step"], "train_step"),
        (["checkpoint", "train_step"], "checkpoint"),
        (["evaluation", "train_step"], "evaluation"),
        (["train_step", "teardown"], "train_step"),
        (["teardown", "teardown"], "teardown"),
    ],
)
def test_a_job_is_where_the_rank_is_that_the_others_will_wait_for(marked, phase):
    assert phase_of_job(None, marked, joined=True) == phase


@pytest.mark.parametrize("marked", [[], [None, None], ["train_step", None], ["of a later version"]])
def test_without_every_ranks_mark_it_is_told_from_outside(marked):
    assert phase_of_job(None, marked, joined=False) == "starting"
    assert phase_of_job(None, marked, joined=True) == "training"


@pytest.mark.parametrize("before", ["training", "train_step", "checkpoint"])
def test_a_job_that_has_trained_does_not_start_again(before):
    assert phase_of_job(before, [None], joined=False) == "training"
