"""What holds for every job: a healthy one is never proved to hang, and one skipped call never accuses another rank."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_ranks import Job, random_job

from rankpatrol.analysis.collectives import find_desync

seeds = st.integers(0, 2**32)


def a_job(rng, world_size):
    ranks = range(world_size)
    groups = [tuple(sorted(rng.sample(ranks, rng.randint(2, world_size)))) for _ in range(rng.randint(0, 3))]
    return random_job(rng, world_size, groups=groups, length=rng.randint(1, 40), ring=rng.choice([3, 7, 20, 1000]))


def looks(job, rng, patience):
    """All ranks' recordings, each at another moment."""
    round_ = {}
    for rank in rng.sample(list(job.programs), len(job.programs)):
        for _ in range(rng.randint(0, patience)):
            job.step(rng.choice(list(job.programs)))
        round_[rank] = job.look(rank)
    return round_


@settings(max_examples=300, deadline=None)
@given(seeds, st.integers(2, 6), st.integers(0, 30), st.booleans(), st.booleans())
def test_a_healthy_job_is_never_proved_hanging_nor_a_waiting_rank_named(seed, world_size, patience, with_probes, some_missing):
    rng = random.Random(seed)
    job = a_job(rng, world_size)
    for _ in range(rng.randint(0, 200)):
        job.step(rng.choice(list(job.programs)))
    before = looks(job, rng, patience)
    waited = job.waiting()
    now = looks(job, rng, patience)
    stacks_are_old = rng.random() < 0.3
    blocked = waited | job.waiting() if stacks_are_old else job.waiting()
    if some_missing:
        now.pop(rng.randrange(world_size))
    found = find_desync(before, now, job.probed() if with_probes else {}, world_size, blocked)
    if found is None:
        return
    assert found.kind in {"rank_missing_collective", "collective_started_everywhere", "rank_conditional_collective"}
    assert not found.proved
    for rank in found.ranks or ():
        assert stacks_are_old or rank not in job.waiting()
        assert rank not in now or before[rank] == now[rank]


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(3, 6))
def test_one_skipped_call_names_exactly_its_rank(seed, world_size):
    rng = random.Random(seed)
    job = random_job(rng, world_size, length=rng.randint(1, 30))
    culprit = rng.randrange(world_size)
    del job.programs[culprit][rng.randrange(len(job.programs[culprit]))]
    job.run_to_the_end(rng)
    recordings = {rank: job.look(rank) for rank in range(world_size)}
    found = find_desync(recordings, recordings, {}, world_size, job.waiting())
    if not recordings[culprit].entries:
        assert found.ranks == (culprit,)
        return
    assert found.kind in {"rank_missing_collective", "collective_mismatch_op", "collective_mismatch_shape"}
    assert found.ranks == (culprit,)
    assert found.proved == (culprit in job.waiting())


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(3, 6))
def test_one_skipped_call_among_many_groups_never_clears_its_rank(seed, world_size):
    rng = random.Random(seed)
    job = a_job(rng, world_size)
    job.ring = 1000
    culprit = rng.randrange(world_size)
    if not job.programs[culprit]:
        return
    del job.programs[culprit][rng.randrange(len(job.programs[culprit]))]
    job.run_to_the_end(rng)
    recordings = {rank: job.look(rank) for rank in range(world_size)}
    found = find_desync(recordings, recordings, job.probed(), world_size, job.waiting())
    assert found is None or found.ranks is None or culprit in found.ranks


@settings(max_examples=200, deadline=None)
@given(seeds, st.integers(2, 6))
def test_other_rank_numbers_only_change_the_numbers(seed, world_size):
    rng = random.Random(seed)
    job = a_job(rng, world_size)
    for _ in range(rng.randint(0, 2)):
        broken = job.programs[rng.randrange(world_size)]
        if broken:
            del broken[rng.randrange(len(broken))]
    job.run_to_the_end(rng)
    recordings = {rank: job.look(rank) for rank in range(world_size)}
    new = list(range(world_size))
    rng.shuffle(new)
    found = find_desync(recordings, recordings, job.probed(), world_size, job.waiting())
    renamed = find_desync(
        {new[rank]: each for rank, each in recordings.items()},
        {new[rank]: each for rank, each in recordings.items()},
        Job(
            {new[rank]: [] for rank in job.programs}, {name: tuple(new[rank] for rank in ranks) for name, ranks in job.groups.items()}
        ).probed(),
        world_size,
        frozenset(new[rank] for rank in job.waiting()),
    )
    if found is None:
        assert renamed is None
        return
    assert renamed is not None
    assert (renamed.kind, renamed.proved) == (found.kind, found.proved)
    assert renamed.ranks == (None if found.ranks is None else tuple(sorted(new[rank] for rank in found.ranks)))
