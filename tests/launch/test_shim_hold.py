"""A failed rank's exit is held back until the evidence of the others is taken, and never for long."""

import os
import signal
import time

from launch_subjects import Job, gone, heard_ready, shimmed, wait_for, watched, words_of

from rankpatrol.system.process import identify

QUICK = {"hold_s": 1.5, "hold_alone_s": 0.3, "descendants_s": 0.1, "drain_s": 0.2}
FAILS_WITH_A_CHILD = """
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
ready(child.pid)
sys.exit(3)
"""


def held(job: Job) -> None:
    """Nothing is released, and the agent that is written down lives: it is us."""
    for attempt in range(5):
        (job.run_dir.path / f"released.{attempt}.json").unlink()
    us = identify(os.getpid())
    assert us is not None
    job.run_dir.write("agent.json", us)


def test_the_exit_is_told_at_once_and_passed_on_when_it_is_released(job: Job) -> None:
    held(job)
    with shimmed(job, "sys.exit(3)") as shim:
        assert wait_for(job.exit).exit_status == 3
        assert shim.poll() is None
        job.release(0)
        assert shim.wait(10) == 3


def test_an_agent_that_never_answers_is_not_waited_for_for_ever(job: Job) -> None:
    held(job)
    began = time.monotonic()
    with shimmed(job, "sys.exit(3)", deadlines=QUICK) as shim:
        assert shim.wait(10) == 3
    assert time.monotonic() - began >= QUICK["hold_s"]


def test_without_an_agent_the_hold_is_short(job: Job) -> None:
    held(job)
    (job.run_dir.path / "agent.json").unlink()
    with shimmed(job, "sys.exit(3)", deadlines={**QUICK, "hold_s": 60.0}) as shim:
        assert shim.wait(10) == 3


def test_the_launchers_signal_ends_the_hold(job: Job) -> None:
    held(job)
    with shimmed(job, "sys.exit(3)") as shim:
        wait_for(job.exit)
        shim.send_signal(signal.SIGTERM)
        assert shim.wait(10) == 3


def test_a_rank_that_was_told_to_end_is_not_held(job: Job) -> None:
    held(job)
    with shimmed(job, "ready(); forever()") as shim:
        heard_ready(shim)
        shim.send_signal(signal.SIGTERM)
        assert shim.wait(10) == -signal.SIGTERM


def test_a_good_end_is_not_held(job: Job) -> None:
    held(job)
    with shimmed(job, "sys.exit(0)") as shim:
        assert shim.wait(10) == 0


def test_what_the_dead_rank_left_is_kept_as_evidence_and_then_ended(job: Job) -> None:
    held(job)
    with shimmed(job, FAILS_WITH_A_CHILD, deadlines={**QUICK, "hold_s": 20.0}) as shim:
        (child,) = heard_ready(shim)
        with watched(child) as (pidfd,):
            wait_for(job.exit)
            assert not gone(pidfd, 0)
            job.release(0)
            assert shim.wait(10) == 3
            assert gone(pidfd, 1)


def test_the_ranks_last_words_are_in_its_log_when_its_end_is_told(job: Job) -> None:
    held(job)
    with shimmed(job, "print('the last word', flush=True); sys.exit(3)") as shim:
        assert words_of(shim) == ["the", "last", "word"]
        wait_for(job.exit)
        assert job.log().read_text() == "the last word\n"
        job.release(0)
        assert shim.wait(10) == 3
