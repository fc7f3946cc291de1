"""A rank that raises is told before its interpreter has gone down."""

import os

import pytest

from standin_job import LAUNCHER, TRAINING, running

pytestmark = pytest.mark.timeout(90)


def test_a_rank_that_raised_and_does_not_go_down_is_a_hang_that_tells_of_the_raise(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with running(tmp_path, launcher=(str(LAUNCHER), "3", str(TRAINING), "1", "raises", str(tmp_path / "pipe"))) as job:
        verdict = job.wait_for("verdict")
        assert (verdict["verdict"], verdict["culprit_ranks"]) == ("hang", [1])
        assert verdict["sentence"].startswith("rank 1 raised ValueError: no such batch in main (standin_training.py:")
        assert "and has not gone down since: rank 1 is blocked opening pipe" in verdict["sentence"]
        assert job.process.wait(50) == 0, job.said()


def test_a_raise_is_an_alert_at_once_and_a_crash_once_the_rank_has_ended(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with running(tmp_path, "--policy", "observe", launcher=(str(LAUNCHER), "3", str(TRAINING), "1", "raises", str(pipe))) as job:
        alert = job.wait_for("alert")
        assert (alert["cause"], alert["suspect_ranks"], alert["certainty"]) == ("user_exception", [1], "supported")
        assert alert["sentence"].startswith("rank 1 raised ValueError: no such batch in main (standin_training.py:")
        assert "verdict" not in job.kinds()
        os.close(os.open(pipe, os.O_WRONLY))
        verdict = job.wait_for("verdict")
        assert (verdict["verdict"], verdict["cause"], verdict["culprit_ranks"]) == ("crash", "user_exception", [1])
        assert verdict["certainty"] == "proved"
        assert (verdict["incident"], job.kinds().count("alert")) == (alert["incident"], 1)
        job.wait_for("bundle_sealed")
