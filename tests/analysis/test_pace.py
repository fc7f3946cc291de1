"""Slow jobs in virtual time: who holds the others up is named, and nobody else ever is."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.synchronous_job import SynchronousJob, eased, noisy, slow
from rankpatrol.analysis.pace.pace import step
from rankpatrol.analysis.pace.records import PacePolicy, Refuted, Slowed
from rankpatrol.core.diagnosis import Certainty

STRUCK = 120
USUAL = noisy(3)
DICE = random.Random(9)


def held_up_by(rank, factor, what, *, until=400, seed=1, base_s=0.2, noise=0.05):
    usual = noisy(seed, base_s, noise)

    def work(number, each):
        seconds, doing, delay_s = usual(number, each)
        struck = each == rank and STRUCK <= number < until
        return (seconds + base_s * (factor - 1), what, delay_s) if struck else (seconds, doing, delay_s)

    return work


@pytest.mark.parametrize("what", ["running", "clock_nanosleep", "read"])
@pytest.mark.parametrize("factor", [1.5, 3.0])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_one_rank_that_is_slower_is_named_within_fifty_steps(what, factor, ranks):
    job = SynchronousJob(held_up_by(1, factor, what, noise=0.05 if ranks < 16 else 0.01), ranks=ranks)
    said = job.run()
    (found,) = slow(said)
    assert (found.verdict, found.cause, found.culprit_ranks, found.certainty) == ("slow", "straggler", (1,), Certainty.SUPPORTED)
    at_step = next(at_step for _, at_step, finding in said if isinstance(finding, Slowed))
    assert at_step - STRUCK <= 50
    onset_s = next(finding.onset_s for _, _, finding in said if isinstance(finding, Slowed))
    assert abs(onset_s - job.onset_s(STRUCK)) <= 2.5
    assert len(eased(said)) == 1


@pytest.mark.parametrize("seed", range(8))
def test_ten_per_cent_name_nobody_wrongly(seed):
    for found in slow(SynchronousJob(held_up_by(2, 1.1, "running", seed=seed), seed=seed).run()):
        assert found.culprit_ranks in {None, (2,)}


def test_all_slower_is_said_without_a_name_and_not_soon():
    def work(number, _rank):
        seconds, doing, delay_s = USUAL(number, _rank)
        return (seconds * (1.6 if number >= STRUCK else 1.0), doing, delay_s)

    job = SynchronousJob(work, steps=700)
    said = job.run()
    (found,) = slow(said)
    assert (found.cause, found.culprit_ranks) == ("straggler_unattributable", None)
    told_s = next(at_s for at_s, _, finding in said if isinstance(finding, Slowed))
    assert 60 <= told_s - job.onset_s(STRUCK) <= 180


def short_of_cpus(number, _rank):
    seconds, doing, _ = USUAL(number, _rank)
    if number < STRUCK:
        return seconds, doing, 0.0
    waits_s = random.Random(number * 64 + _rank).uniform(0.05, 0.3)
    return seconds + waits_s, doing, waits_s


def test_a_host_short_of_cpus_is_called_so_and_nobody_is_named():
    job = SynchronousJob(short_of_cpus, steps=600, foreign_cpus=lambda at_s: 0.1 if at_s < 124 else 2.0)
    said = job.run()
    (found,) = slow(said)
    assert (found.cause, found.culprit_ranks, found.certainty) == ("host_contention", None, Certainty.SUPPORTED)
    told_s = next(at_s for at_s, _, finding in said if isinstance(finding, Slowed))
    assert told_s - job.onset_s(STRUCK) <= 120


def test_one_rank_that_gets_no_cpu_is_not_to_blame():
    usual = noisy(5)

    def work(number, rank):
        seconds, doing, _ = usual(number, rank)
        waits_s = 0.2 if rank == 1 and number >= STRUCK else 0.0
        return seconds + waits_s, doing, waits_s

    (found,) = slow(SynchronousJob(work, steps=600).run())
    assert found.culprit_ranks is None


def test_ranks_that_wait_in_a_way_that_cannot_be_told_from_work_are_never_named():
    (found,) = slow(SynchronousJob(held_up_by(1, 2.0, "running", until=1000), waits_by="running").run())
    assert found.cause == "straggler_unattributable"


def test_a_rank_that_the_others_waited_for_all_along_is_not_named_for_what_all_do():
    """Rank 0 also logs, always; then the inputs get longer for everybody."""
    usual = noisy(6)

    def work(number, rank):
        seconds, doing, _ = usual(number, rank)
        return seconds * (1.6 if number >= STRUCK else 1.0) + (0.06 if rank == 0 else 0.0), doing, 0.0

    (found,) = slow(SynchronousJob(work, steps=700).run())
    assert found.culprit_ranks is None


def test_a_name_that_stacks_refute_is_never_said_again():
    job = SynchronousJob(held_up_by(1, 2.0, "running", until=1000), steps=400)
    job.run()
    state, said = step(job.state, Refuted(), PacePolicy())
    assert (state.told, state.open, said) == (False, False, ())


# What is usual in healthy trainings.
def with_evaluations(number, _rank):
    seconds, doing, delay_s = USUAL(number, _rank)
    return (seconds + (30.0 if number % 100 == 0 else 0.0), doing, delay_s)


def with_saves_by_rank_0(number, rank):
    seconds, doing, delay_s = USUAL(number, rank)
    return (seconds + 4.0, "write", delay_s) if rank == 0 and number % 50 == 0 else (seconds, doing, delay_s)


def with_garbage(number, rank):
    return (0.2 + (5.0 if DICE.random() < 0.01 else 0.0), "running", 0.0)


def with_warm_up(number, _rank):
    return (4.0 if number == 1 else 0.6 if number < 15 else 0.2, "running", 0.0)


def with_buckets(number, _rank):
    return (0.1 * DICE.choice((1, 1, 2, 3, 5)), "running", 0.0)


def with_turns(number, rank):
    """Whose batch is long is another rank each time."""
    return (0.2 * (2.0 if (number * 7919) % 4 == rank else 1.0), "running", 0.0)


def with_drift(number, _rank):
    return (0.2 + number * 0.0002, "running", 0.0)


@pytest.mark.parametrize(
    "work",
    [with_evaluations, with_saves_by_rank_0, with_garbage, with_warm_up, with_buckets, with_turns, with_drift],
    ids=lambda each: each.__name__,
)
def test_nothing_is_said_of_what_is_usual(work):
    job = SynchronousJob(work, steps=1500)
    assert slow(job.run()) == []


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    base_s=st.sampled_from([0.05, 0.2, 1.0, 7.0]),
    noise=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    ranks=st.sampled_from([2, 4, 8]),
    exact=st.booleans(),
)
def test_noise_alone_names_nobody_and_is_never_slow(seed, base_s, noise, ranks, exact):
    job = SynchronousJob(noisy(seed, base_s, noise), ranks=ranks, steps=400, seed=seed, exact=exact)
    assert slow(job.run()) == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 30), culprit=st.integers(0, 3), factor=st.floats(1.0, 4.0), noise=st.sampled_from([0.05, 0.3, 1.0]))
def test_nobody_innocent_is_ever_named(seed, culprit, factor, noise):
    said = SynchronousJob(held_up_by(culprit, factor, "running", seed=seed, noise=noise, until=350), seed=seed, steps=500).run()
    assert len(slow(said)) <= 1
    for found in slow(said):
        assert found.culprit_ranks in {None, (culprit,)}


def test_it_is_told_once_an_attempt_however_often_it_comes():
    usual = noisy(11)

    def work(number, rank):
        seconds, doing, delay_s = usual(number, rank)
        return (seconds * (3.0 if rank == 1 and (number // 100) % 2 else 1.0), doing, delay_s)

    said = SynchronousJob(work, steps=1000).run()
    assert len(slow(said)) == 1
    assert len(eased(said)) == 1


def test_steps_that_only_logs_count_tell_a_slow_job_too_later():
    def work(number, _rank):
        return (0.2 * (2.0 if number >= 400 else 1.0), "running", 0.0)

    said = SynchronousJob(work, steps=1200, exact=False).run()
    assert [found.cause for found in slow(said)] == ["straggler_unattributable"]


def test_what_else_the_machine_says_stands_beside_it():
    job = SynchronousJob(held_up_by(1, 2.0, "read"), pressure=lambda at_s: {"io": 0.0 if at_s < 124 else 0.8, "cpu": 0.5})
    (found,) = slow(job.run())
    assert any("waits for storage" in line for line in found.reasons_against)
    assert not any("waits for a CPU" in line for line in found.reasons_against)


@pytest.mark.parametrize("seed", range(12))
def test_a_drift_of_all_names_nobody_however_unequal_the_ranks_are(seed):
    """Steps grow and shrink slowly for everybody; some ranks are always a little quicker than others.

    In 1 of 700 such walks somebody is named after all (seed 215); nothing is ever done about a slow rank.
    """
    dice = random.Random(seed)
    shares = [dice.uniform(0.9, 1.1) for _ in range(4)]
    drift = [0.0]

    def work(_number, rank):
        if rank == 0:
            drift[0] = 0.98 * drift[0] + dice.gauss(0, 0.06)
        return (0.2 * shares[rank] * math.exp(drift[0]), "running", 0.0)

    assert all(found.culprit_ranks is None for found in slow(SynchronousJob(work, steps=1500, seed=seed).run()))
