"""The situations recorded from real ranks, each with the only right answer."""

import pytest

import scenes
from rankpatrol.analysis.diagnose import diagnose

BLAMED = {
    "ar_missing": ("rank_blocked", (3,)),
    "barrier": ("rank_blocked", (3,)),
    "ckpt": ("filesystem_stall", (0,)),
    "dl_fifo": ("data_loader_worker_stuck", (3,)),
    "dl_inproc_fifo": ("filesystem_stall", (3,)),
    "dl_pyloop": ("data_loader_worker_stuck", (3,)),
    "exc_swallow": ("rank_blocked", (3,)),
    "p2p": ("rank_blocked", (0,)),
}
# compute and gil_regex: one look at a running process cannot tell work from a loop. store: the store's wait has no frame of torch's.
NOBODY_YET = ("compile", "compute", "gil_regex", "optim", "store")


def test_every_recorded_situation_has_an_expected_answer():
    assert set(BLAMED) | set(NOBODY_YET) == set(scenes.SCENARIOS)


@pytest.mark.parametrize("scenario", BLAMED)
def test_the_rank_that_the_others_wait_for_is_named(scenario):
    found = diagnose((scenes.recorded(scenario),))
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", *BLAMED[scenario])
    assert set(found.victim_ranks) == {0, 1, 2, 3} - set(found.culprit_ranks)


@pytest.mark.parametrize("scenario", NOBODY_YET)
def test_nobody_is_blamed_where_one_look_does_not_tell(scenario):
    found = diagnose((scenes.recorded(scenario),))
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def test_the_sentence_names_the_loader_process_and_what_blocks_it():
    sentence = diagnose((scenes.recorded("dl_fifo"),)).sentence
    assert sentence == (
        "rank 3 waits for loader process 23701, which is blocked opening a file that is not known; ranks 0-2 wait for it in backward"
    )
