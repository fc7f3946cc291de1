"""What dumps of one moment say, and how sure that can be."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_ranks import WORLD, Job, entry, past, random_job, recording
from told_ranks import told

from rankpatrol.analysis.told.recordings import diagnose_recordings
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.rings import Recordings

FOUR = {WORLD: (0, 1, 2, 3)}
LONG = dict.fromkeys(range(8), 700.0)
SURER = [Certainty.SUSPECTED, Certainty.SUPPORTED, Certainty.PROVED]
seeds = st.integers(0, 2**32)


def pending(sequence=6, operation="all_reduce", size=16, group=WORLD, **facts):
    return entry(group, sequence, operation, size, retired=False, **facts)


def behind():
    return {**{rank: recording(*past(5), pending(6)) for rank in range(3)}, 3: recording(*past(5))}


def brief(found):
    return found.verdict, found.cause, found.culprit_ranks, found.certainty


def test_nothing_is_said_where_nothing_was_read():
    assert diagnose_recordings(Recordings(calls=(), rings={})) is None


def test_a_rank_that_all_others_have_waited_for_until_their_time_out_is_named():
    found = diagnose_recordings(told(behind(), members=FOUR, ages_s=LONG))
    assert brief(found) == ("hang", "rank_missing_collective", (3,), Certainty.SUPPORTED)
    assert found.victim_ranks == (0, 1, 2)
    assert "there is one dump a rank: whether anything moved afterwards is not in them" in found.reasons_against


def test_a_rank_that_is_behind_in_dumps_of_an_unknown_age_is_only_suspected():
    assert brief(diagnose_recordings(told(behind(), members=FOUR))) == ("hang", "rank_missing_collective", (3,), Certainty.SUSPECTED)


def test_a_rank_that_is_behind_in_fresh_dumps_is_not_named():
    found = diagnose_recordings(told(behind(), members=FOUR, ages_s=dict.fromkeys(range(4), 0.2)))
    assert (found.verdict, found.culprit_ranks) == ("undetermined", None)


def test_a_dump_that_is_missing_names_its_rank_where_all_others_wait_for_it():
    dumps = behind()
    del dumps[3]
    found = diagnose_recordings(told(dumps, members=FOUR, ages_s=LONG))
    assert brief(found) == ("hang", "rank_missing_collective", (3,), Certainty.SUSPECTED)
    assert "rank 3 has written no dump: often that is the rank to look at first" in found.reasons_against


def test_a_dump_that_cannot_be_read_names_nobody():
    dumps = behind()
    del dumps[3]
    found = diagnose_recordings(told(dumps, members=FOUR, ages_s=LONG, unread={3: "it is cut"}))
    assert found.culprit_ranks is None
    assert "the dump of rank 3 could not be read: it is cut" in found.reasons_against


def test_the_last_ranks_missing_dump_is_not_taken_for_a_collective_that_all_are_in():
    dumps = behind()
    del dumps[3]
    found = diagnose_recordings(told(dumps, ages_s=LONG))
    assert found.certainty is Certainty.SUSPECTED
    assert "that the job has no more than 3 ranks is not in these dumps" in found.reasons_against
    assert diagnose_recordings(told(dumps, ages_s=LONG), world_size=4).culprit_ranks == (3,)


def test_an_exception_in_the_log_of_the_rank_without_a_dump_is_the_cause():
    one = {1: recording(*past(12), pending(13))}
    found = diagnose_recordings(told(one, members={WORLD: (0, 1)}), errors={0: "ValueError: bad sample 8812"})
    assert brief(found) == ("hang", "rank_exception_peers_wait", (0,), Certainty.SUPPORTED)
    assert found.sentence == (
        "rank 0 raised ValueError: bad sample 8812 and has written no dump; rank 1 waits in all_reduce 13 of group default_pg"
    )


def test_without_that_exception_the_only_other_rank_is_not_named():
    one = {1: recording(*past(12), pending(13))}
    found = diagnose_recordings(told(one, members={WORLD: (0, 1)}))
    assert found.culprit_ranks is None
    assert "rank 0 has written no dump: often that is the rank to look at first" in found.reasons_against


def test_two_errors_of_ranks_without_dumps_name_neither():
    found = diagnose_recordings(told(behind(), members={WORLD: tuple(range(6))}), errors={4: "OSError", 5: "ValueError"})
    assert found.cause != "rank_exception_peers_wait"


def odd(line=None, usual=None):
    ranks = {rank: recording(*past(5, line=usual), pending(6, line=usual)) for rank in range(3)}
    return {**ranks, 3: recording(*past(5, line=usual), pending(6, "broadcast", line=line))}


def test_another_operation_at_the_same_sequence_is_proved_where_it_stands_on_the_common_line():
    assert brief(diagnose_recordings(told(odd(7, 7), members=FOUR))) == ("hang", "collective_mismatch_op", (3,), Certainty.PROVED)
    for dumps in (odd(), odd(9, 7)):
        found = diagnose_recordings(told(dumps, members=FOUR))
        assert brief(found) == ("hang", "collective_mismatch_op", (3,), Certainty.SUPPORTED)


def test_a_circle_is_proved_by_the_watchdogs_of_its_ranks_alone():
    usual = (*past(2, group="1:a"), *past(2, group="2:b"))
    both = {0: recording(*usual, pending(3, group="1:a")), 1: recording(*usual, pending(3, group="2:b"))}
    dumps = told(both, members={"1:a": (0, 1), "2:b": (0, 1)}, ages_s=LONG)
    assert brief(diagnose_recordings(dumps)) == ("hang", "opposite_order", (0, 1), Certainty.SUPPORTED)
    assert diagnose_recordings(dumps, timed_out=frozenset({0, 1})).certainty is Certainty.PROVED


def test_all_in_and_none_out_blames_no_rank():
    found = diagnose_recordings(told({rank: recording(*past(5), pending(6)) for rank in range(4)}, members=FOUR, ages_s=LONG))
    assert brief(found) == ("hang", "collective_started_everywhere", None, Certainty.SUPPORTED)


def receives():
    return {
        0: recording(*past(1), pending(1, "recv 0<-1", is_p2p=True)),
        1: recording(*past(1), pending(1, "recv 1<-0", is_p2p=True)),
    }


def test_two_ranks_that_both_receive_until_their_time_out_are_a_mismatch_and_before_it_are_not():
    assert brief(diagnose_recordings(told(receives(), ages_s=LONG)))[1:3] == ("p2p_mismatch", None)
    assert diagnose_recordings(told(receives(), ages_s=dict.fromkeys(range(2), 60.0))).verdict == "undetermined"
    assert diagnose_recordings(told(receives())).verdict == "undetermined"


def test_a_receive_that_nobody_meets_until_its_time_out_is_told_and_blames_nobody():
    waits = {0: recording(*past(3)), 1: recording(*past(3), pending(1, "recv 1<-0", is_p2p=True))}
    found = diagnose_recordings(told(waits, ages_s=LONG))
    assert brief(found) == ("hang", "p2p_mismatch", None, Certainty.SUSPECTED)
    assert "rank 1 is in recv 1<-0 of group default_pg, and rank 0 has nothing open that meets it" in found.sentence
    assert diagnose_recordings(told(waits, ages_s={1: 60.0})).verdict == "undetermined"


def test_a_receive_that_is_met_is_no_mismatch():
    met = {0: recording(*past(3), pending(1, "send 0->1", is_p2p=True)), 1: recording(*past(3), pending(1, "recv 1<-0", is_p2p=True))}
    assert diagnose_recordings(told(met, ages_s=LONG)).verdict == "undetermined"


def test_ranks_that_have_ended_all_their_operations_are_healthy():
    assert diagnose_recordings(told({rank: recording(*past(5)) for rank in range(4)}, members=FOUR)).verdict == "healthy"


def test_a_missing_dump_beside_finished_ranks_is_not_healthy():
    assert diagnose_recordings(told({rank: recording(*past(5)) for rank in range(3)}, members=FOUR)).verdict == "undetermined"


def joined(first, second):
    """Recordings of two jobs in one folder."""
    shift = len(first.calls)
    rings = {
        rank: msgspec.structs.replace(ring, calls=type(ring.calls)("I", (number + shift for number in ring.calls)))
        for rank, ring in second.rings.items()
    }
    return Recordings(calls=first.calls + second.calls, rings={**first.rings, **rings})


def test_dumps_of_a_job_with_other_ranks_are_left_out_and_named():
    stray = told({5: recording(*past(9))}, members={WORLD: tuple(range(6))})
    found = diagnose_recordings(joined(told(behind(), members=FOUR), stray))
    assert found.culprit_ranks == (3,)
    assert "4 dumps are of 4 ranks, 1 dump is of 6 ranks: those of rank 5 were left out" in found.reasons_against
    even = joined(told({0: recording(*past(1))}, members={WORLD: (0, 1)}), told({2: recording(*past(1))}, members={WORLD: (0, 1, 2)}))
    assert diagnose_recordings(even).verdict == "undetermined"


@pytest.mark.parametrize("backend_tells_members", [True, False])
def test_rings_that_wrapped_differently_accuse_nobody(backend_tells_members):
    """Stage 0 records 4 operations a step, stage 1 records 8; both rings hold the last 40."""
    rings = {}
    for rank in range(8):
        stage = f"{1 + rank // 4}:stage"
        steps = [
            each
            for step in range(100)
            for each in [*(entry(stage, step * 8 + number, size=4) for number in range(1, 4 if rank < 4 else 8)), entry(WORLD, step + 1)]
        ]
        rings[rank] = recording(*steps[-40:])
    members = {WORLD: tuple(range(8)), "1:stage": (0, 1, 2, 3), "2:stage": (4, 5, 6, 7)} if backend_tells_members else None
    assert diagnose_recordings(told(rings, members=members)).verdict == "healthy"


def a_job(rng, world_size):
    ranks = range(world_size)
    groups = [tuple(sorted(rng.sample(ranks, rng.randint(2, world_size)))) for _ in range(rng.randint(0, 3))]
    return random_job(rng, world_size, groups=groups, length=rng.randint(1, 40), ring=rng.choice([3, 7, 20, 1000]))


def mixed_job(rng):
    """Tensor-parallel pairs inside of pipeline stages inside of data-parallel copies, sharded: what runs differs by stage."""
    tp, pp, dp = 2, rng.randint(1, 2), rng.randint(1, 2)
    place = {(copy * pp + stage) * tp + part: (copy, stage, part) for copy in range(dp) for stage in range(pp) for part in range(tp)}
    groups = {WORLD: tuple(place)}
    for name, own in (("tp", (0, 1)), ("dp", (1, 2)), ("stage", (1,))):
        for number, key in enumerate(sorted({tuple(at[index] for index in own) for at in place.values()})):
            groups[f"{name}{number}:{name}"] = tuple(r for r, at in place.items() if tuple(at[index] for index in own) == key)
    programs = {}
    for rank, at in place.items():
        mine = {name.partition(":")[2]: name for name, ranks in groups.items() if rank in ranks and name != WORLD}
        layers = range(2 + at[1])
        step = [
            *((mine["dp"], "_all_gather_base", 8) for _ in layers),
            *((mine["tp"], "all_reduce", 32) for _ in layers),
            *((mine["dp"], "_reduce_scatter_base", 64) for _ in layers),
            (mine["stage"], "all_reduce", 1),
            (WORLD, "all_reduce", 1),
        ]
        programs[rank] = step * 4
    return Job(programs, groups, ring=rng.choice([5, 9, 1000]))


def walk(job, rng, most):
    for _ in range(rng.randint(0, most)):
        job.step(rng.choice(list(job.programs)))


def moments(job, rng):
    """Each rank's dump at another moment of a job that runs."""
    round_ = {}
    for rank in rng.sample(list(job.programs), len(job.programs)):
        walk(job, rng, 12)
        round_[rank] = job.look(rank)
    return round_


@settings(max_examples=300, deadline=None)
@given(seeds, st.booleans(), st.booleans(), st.sampled_from([0.1, 60.0, None]))
def test_a_healthy_job_of_any_mix_is_never_accused(seed, mixed, with_members, age_s):
    rng = random.Random(seed)
    job = mixed_job(rng) if mixed else a_job(rng, rng.randint(2, 6))
    walk(job, rng, 200)
    dumps = moments(job, rng)
    ages = None if age_s is None else dict.fromkeys(dumps, age_s)
    found = diagnose_recordings(told(dumps, members=job.groups if with_members else None, ages_s=ages))
    assert found.certainty is Certainty.SUSPECTED
    assert found.cause in {"none", "unknown", "rank_missing_collective", "collective_started_everywhere"}
    if age_s == 0.1:
        assert found.verdict != "hang"


def broken(rng):
    """A job at its end, in which at most two ranks left one operation out."""
    job = mixed_job(rng) if rng.random() < 0.5 else a_job(rng, rng.randint(2, 6))
    for _ in range(rng.randint(0, 2)):
        program = rng.choice(list(job.programs.values()))
        if program:
            del program[rng.randrange(len(program))]
    job.run_to_the_end(rng)
    return job


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_other_rank_numbers_only_change_the_numbers(seed):
    rng = random.Random(seed)
    job = broken(rng)
    new = list(range(len(job.programs)))
    rng.shuffle(new)
    dumps = {rank: job.look(rank) for rank in job.programs}
    ages = {rank: rng.choice([700.0, 60.0]) for rank in dumps}
    found = diagnose_recordings(told(dumps, members=job.groups, ages_s=ages))
    renamed = diagnose_recordings(
        told(
            {new[rank]: each for rank, each in dumps.items()},
            members={name: tuple(sorted(new[rank] for rank in ranks)) for name, ranks in job.groups.items()},
            ages_s={new[rank]: age for rank, age in ages.items()},
        )
    )
    assert (renamed.verdict, renamed.cause, renamed.certainty) == (found.verdict, found.cause, found.certainty)
    assert renamed.culprit_ranks == (None if found.culprit_ranks is None else tuple(sorted(new[rank] for rank in found.culprit_ranks)))


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_evidence_that_is_taken_away_never_makes_the_answer_surer(seed):
    rng = random.Random(seed)
    job = broken(rng)
    dumps = {rank: job.look(rank) for rank in job.programs}
    ages = {rank: rng.choice([700.0, 60.0]) for rank in dumps}
    out = frozenset(rank for rank in dumps if rng.random() < 0.5)
    full = diagnose_recordings(told(dumps, members=job.groups, ages_s=ages), timed_out=out)
    match rng.randrange(4):
        case 0:
            dumps.pop(rng.choice(list(dumps)))
        case 1:
            ages.pop(rng.choice(list(ages)))
        case 2:
            out = frozenset()
        case _:
            dumps[rng.choice(list(dumps))] = recording()
    less = diagnose_recordings(told(dumps, members=job.groups, ages_s=ages), timed_out=out)
    if less is None or less.verdict != "hang":
        return
    assert SURER.index(less.certainty) <= SURER.index(full.certainty)
