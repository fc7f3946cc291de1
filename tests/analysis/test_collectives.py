"""Who is named by the flight recordings, and who never is."""

import pytest
from recorded_ranks import WORLD, entry, past, recording

from rankpatrol.analysis.collectives import find_desync
from rankpatrol.analysis.desyncs import explain_desync
from rankpatrol.core.diagnosis import Certainty
from rankpatrol.core.snapshot import Collective, FlightRecording, GroupStatus, ProcessGroup

ALL = frozenset(range(4))
PAIRS = {rank: (ProcessGroup(name="1", backend="gloo", ranks=(0, 1), timeout_s=None),) for rank in (0, 1)}


def twice(recordings, blocked, groups=None, world_size=4):
    return find_desync(recordings, recordings, groups or {}, world_size, frozenset(blocked))


def pending(sequence=6, operation="all_reduce", size=16, group=WORLD, **facts):
    return entry(group, sequence, operation, size, retired=False, **facts)


def behind(**last):
    return {**{rank: recording(*past(5), pending(6)) for rank in range(3)}, 3: recording(*past(5), **last)}


def test_one_round_alone_says_nothing_of_a_rank_that_is_behind():
    assert find_desync(None, behind(), {}, 4, frozenset({0, 1, 2})) is None


def test_a_rank_that_moved_between_the_rounds_is_not_named():
    before = {**behind(), 3: recording(*past(4))}
    assert find_desync(before, behind(), {}, 4, frozenset({0, 1, 2})) is None


def test_a_rank_that_waits_in_something_not_recorded_is_not_named():
    found = twice(behind(), ALL)
    assert (found.kind, found.ranks, found.proved) == ("rank_missing_collective", None, False)
    assert "rank 3 waits for a peer in something that is not recorded" in found.reasons_against


def test_certainty_is_what_recordings_and_stacks_carry():
    assert explain_desync(twice(behind(), {0, 1, 2})).certainty is Certainty.SUPPORTED
    assert explain_desync(twice(behind(), ())).certainty is Certainty.SUSPECTED
    wrong = different(*[("all_reduce", 16)] * 3, ("barrier", 0))
    assert explain_desync(twice(wrong, {0, 1, 2})).certainty is Certainty.SUPPORTED
    assert explain_desync(twice(wrong, {0, 1, 3})).certainty is Certainty.SUSPECTED


def test_an_operation_that_runs_in_the_background_does_not_make_its_rank_a_waiting_one():
    recordings = {**behind(), 3: recording(*past(5), pending(1, group="1:other"))}
    assert twice(recordings, {0, 1, 2}).ranks == (3,)


def test_of_two_ranks_the_one_that_is_absent_is_seen_but_not_proved():
    found = twice({0: recording(*past(5), pending(6)), 1: recording(*past(5))}, {0}, world_size=2)
    assert (found.ranks, found.proved) == ((1,), False)


def test_a_fast_rank_accuses_nobody():
    assert twice({0: recording(*past(5), pending(6)), **{rank: recording(*past(5)) for rank in (1, 2, 3)}}, {0}) is None


def test_a_chain_leads_past_the_rank_that_waits_itself():
    """Ranks 0 and 1 wait for 2 in the world; 2 waits for 3 in a pair; 3 waits for nobody."""
    recordings = {
        0: recording(*past(5), pending(6)),
        1: recording(*past(5), pending(6)),
        2: recording(*past(5), *past(2, group="1:pair"), pending(3, group="1:pair")),
        3: recording(*past(5), *past(2, group="1:pair")),
    }
    found = twice(recordings, {0, 1, 2})
    assert (found.ranks, found.proved) == ((3,), False)


def test_two_missing_recordings_name_nobody():
    dumps = behind()
    del dumps[3], dumps[2]
    found = twice(dumps, {0, 1})
    assert found.ranks is None
    assert "no recording of ranks 2-3 tells where it is in this group" in found.reasons_against


def test_an_unrecorded_rank_that_waits_too_is_not_named():
    dumps = behind()
    del dumps[3]
    assert twice(dumps, ALL).ranks is None


def test_a_skipped_call_is_told_from_a_wrong_one_by_what_used_to_follow():
    cycle = [("all_reduce", 16), ("barrier", 0)] * 3
    usual = tuple(entry(WORLD, number, *each) for number, each in enumerate(cycle, 1))
    recordings = {rank: recording(*usual[:4], pending(5)) for rank in (0, 1, 2)}
    recordings[3] = recording(*usual[:4], pending(5, "barrier", 0))
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("rank_missing_collective", (3,), True)
    assert found.sentence == "rank 3 skipped all_reduce 5 of group default_pg: it waits in barrier 5 where ranks 0-2 wait in all_reduce 5"


def test_a_skipped_call_is_seen_in_calls_that_were_enqueued_ahead():
    sizes = [16, 16, 8, 4, 2, 1]
    ahead = tuple(entry(WORLD, number, size=size, retired=number < 3) for number, size in enumerate(sizes, 1))
    short = tuple(entry(WORLD, number, size=size, retired=number < 3) for number, size in enumerate(sizes[:2] + sizes[3:], 1))
    found = twice({**{rank: recording(*ahead) for rank in (0, 1, 2)}, 3: recording(*short)}, ALL)
    assert (found.kind, found.ranks, found.sequence) == ("rank_missing_collective", (3,), 3)


def test_a_rank_that_skipped_one_group_and_waits_in_the_next_is_named():
    usual = (*past(3), *past(3, group="1:eval"))
    recordings = {rank: recording(*usual, pending(4)) for rank in (0, 1, 2)}
    recordings[3] = recording(*usual, pending(4, group="1:eval"))
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("rank_missing_collective", (3,), True)
    assert (
        found.sentence == "rank 3 skipped all_reduce 4 of group default_pg: it waits in all_reduce 4 of group 1:eval "
        "where ranks 0-2 wait in all_reduce 4 of group default_pg"
    )


def different(*ops):
    return {rank: recording(*past(5), pending(6, *op)) for rank, op in enumerate(ops)}


def test_another_shape_is_named_where_three_agree():
    found = twice(different(("all_reduce", 16), ("all_reduce", 8), ("all_reduce", 16), ("all_reduce", 16)), ALL)
    assert (found.kind, found.ranks, found.proved) == ("collective_mismatch_shape", (1,), True)
    assert (
        found.sentence == "rank 1 waits in all_reduce 6 with [8] Float in group default_pg where ranks 0 and 2-3 wait in it with [16] Float"
    )


@pytest.mark.parametrize("ops", [[("all_reduce", 16), ("broadcast", 16)], [("all_reduce", 16)] * 2 + [("broadcast", 16)] * 2])
def test_nobody_is_named_without_a_majority(ops):
    found = twice(different(*ops), ALL, world_size=len(ops))
    assert (found.kind, found.ranks, found.proved) == ("collective_mismatch_op", None, True)
    assert "nobody can be named" in found.sentence


def test_an_unseen_member_may_turn_a_majority():
    recordings = different(("all_reduce", 16), ("all_reduce", 16), ("broadcast", 16))
    assert twice(recordings, ALL).ranks is None
    assert twice(recordings, ALL, world_size=3).ranks == (2,)


def test_a_mismatch_of_one_round_is_named_but_not_proved():
    found = find_desync(None, different(*[("all_reduce", 16)] * 3, ("barrier", 0)), {}, 4, ALL)
    assert (found.ranks, found.proved) == ((3,), False)


def test_uneven_splits_are_no_mismatch():
    found = twice(different(("all_to_all", 16), ("all_to_all", 8), ("all_to_all", 4), ("all_to_all", 2)), ALL)
    assert (found.kind, found.ranks) == ("collective_started_everywhere", None)


def test_the_same_elements_in_another_shape_are_no_mismatch():
    flat = recording(*past(5), pending(6))
    square = Collective(**{**{name: getattr(pending(6), name) for name in Collective.__struct_fields__}, "input_sizes": ((4, 4),)})
    assert twice({0: flat, 1: flat, 2: recording(*past(5), square)}, {0, 1, 2}, world_size=3).kind == "collective_started_everywhere"


def test_two_groups_in_opposite_order_are_a_circle_of_both():
    both = {
        rank: (
            ProcessGroup(name="1", backend="gloo", ranks=(1, 2), timeout_s=None),
            ProcessGroup(name="2", backend="gloo", ranks=(1, 2), timeout_s=None),
        )
        for rank in (1, 2)
    }
    recordings = {
        0: recording(*past(5), pending(6)),
        1: recording(*past(5), *past(2, group="1:a"), *past(2, group="2:b"), pending(3, group="1:a")),
        2: recording(*past(5), *past(2, group="1:a"), *past(2, group="2:b"), pending(3, group="2:b")),
        3: recording(*past(5), pending(6)),
    }
    found = twice(recordings, ALL, both)
    assert (found.kind, found.ranks, found.proved) == ("opposite_order", (1, 2), True)
    assert "rank 1 waits in all_reduce 3 of group 1:a for rank 2" in found.sentence
    assert explain_desync(found).victim_ranks == (0, 3)
    assert find_desync(None, recordings, both, 4, ALL) is None
    assert not twice(recordings, {0, 1, 3}, both).proved


def test_halves_that_took_two_orders_name_nobody():
    usual = (*past(2, group="1:a"), *past(2, group="2:b"))
    recordings = {rank: recording(*usual, pending(3, group="1:a" if rank < 2 else "2:b")) for rank in range(4)}
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("opposite_order", None, True)


def circle():
    usual = (*past(5), *past(2, group="1:a"), *past(2, group="2:b"))
    return {
        0: recording(*past(5), pending(6)),
        1: recording(*usual, pending(3, group="1:a")),
        2: recording(*usual, pending(3, group="2:b")),
        3: recording(*past(5), pending(6)),
    }


def test_a_circle_that_moved_between_the_rounds_is_none():
    before = {**circle(), 1: recording(*past(5), *past(2, group="1:a"), *past(2, group="2:b"))}
    assert find_desync(before, circle(), {}, 4, ALL) is None


def test_a_rank_that_may_wait_in_something_that_can_end_is_in_no_circle():
    free = {**circle(), 1: recording(*circle()[1].entries, pending(6, "barrier", 0))}
    free = {**free, 0: recording(*past(5), pending(6, "barrier", 0)), 3: recording(*past(5), pending(6, "barrier", 0))}
    free[2] = recording(*past(5), pending(6, "barrier", 0), *circle()[2].entries[5:])
    assert not twice(free, ALL).proved


def test_a_rank_that_left_two_others_for_a_fourth_that_waits_rightly_is_the_one_named():
    usual = (*past(2), *past(2, group="1:three"))
    recordings = {
        0: recording(*usual, pending(3, group="1:three")),
        1: recording(*usual, pending(3, group="1:three")),
        2: recording(*usual, pending(3)),
        3: recording(*past(2), pending(3)),
    }
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("rank_missing_collective", (2,), True)


def test_one_against_one_names_both_though_a_third_is_still_on_its_way():
    usual = (*past(2), *past(2, group="1:pair"))
    recordings = {0: recording(*usual, pending(3, group="1:pair")), 1: recording(*past(2)), 2: recording(*usual, pending(3))}
    found = twice(recordings, {0, 2}, world_size=3)
    assert (found.kind, found.ranks, found.proved) == ("opposite_order", (0, 2), True)


def test_two_ranks_that_both_receive_are_a_mismatch_of_point_to_point():
    recordings = {
        0: recording(*past(1), pending(1, "recv 0<-1", is_p2p=True)),
        1: recording(*past(1), pending(1, "recv 1<-0", is_p2p=True)),
    }
    found = twice(recordings, {0, 1}, world_size=2)
    assert (found.kind, found.ranks, found.proved) == ("p2p_mismatch", None, True)


def test_a_send_that_meets_its_receive_is_none():
    recordings = {
        0: recording(*past(1), pending(1, "send 0->1", is_p2p=True)),
        1: recording(*past(1), pending(1, "recv 1<-0", is_p2p=True)),
    }
    assert twice(recordings, {0, 1}, world_size=2) is None


def test_a_collective_that_one_rank_alone_runs_is_the_lines_fault():
    recordings = {0: recording(*past(5), pending(1, "barrier", 0, "1:eval", line=57))}
    recordings |= {rank: recording(*past(5), *past(0), pending(6)) for rank in (1, 2, 3)}
    groups = {rank: (ProcessGroup(name="1", backend="gloo", ranks=(0, 1, 2, 3), timeout_s=None),) for rank in range(4)}
    found = twice(recordings, ALL, groups)
    assert (found.kind, found.ranks, found.proved) == ("rank_conditional_collective", None, True)
    assert found.sentence == (
        "only rank 0 runs barrier 1 of group 1:eval (at train_step (train.py:57)); ranks 1-3 wait in all_reduce 6 of group default_pg"
    )


def line_of_each(steps, last, line):
    """Ranks that ran two collectives a step, each on its own line, and now stand in these."""
    usual = [each for step in range(steps) for each in ((2 * step + 1, "all_reduce", 16, 60), (2 * step + 2, "barrier", 0, 61))]
    done = [entry(WORLD, number, operation, size, line=at) for number, operation, size, at in usual]
    return recording(*done, pending(2 * steps + 1, *last, line=line))


def test_a_call_on_a_line_of_its_own_is_told_from_a_skipped_one_by_that_line():
    others = {rank: line_of_each(3, ("all_reduce", 16), 60) for rank in (1, 2, 3)}
    alone = twice({**others, 0: line_of_each(3, ("barrier", 0), 57)}, ALL)
    assert (alone.kind, alone.ranks, alone.proved) == ("rank_conditional_collective", None, True)
    assert alone.sentence == "only rank 0 runs barrier 7 of group default_pg (at train_step (train.py:57)); ranks 1-3 wait in all_reduce 7"
    skipped = twice({**others, 0: line_of_each(3, ("barrier", 0), 61)}, ALL)
    assert (skipped.kind, skipped.ranks) == ("rank_missing_collective", (0,))


def ran(*calls):
    """One rank that ran these (operation, size, line), and stands in the last one."""
    done = [entry(WORLD, number, operation, size, line=line) for number, (operation, size, line) in enumerate(calls, 1)]
    return recording(*done[:-1], pending(len(calls), *calls[-1][:2], line=calls[-1][2]))


STEP, SAVED = ("all_reduce", 16, 102), ("barrier", 0, 79)


def test_a_call_too_many_that_met_another_of_its_kind_is_found_by_its_line():
    """A guarded barrier before the save: it pairs with the others' barrier of the save, all go on, and stand one call apart later."""
    usual = [STEP, STEP, SAVED] * 2
    others = {rank: ran(*usual, STEP) for rank in (1, 2, 3)}
    found = twice({**others, 0: ran(*usual[:5], ("barrier", 0, 123), SAVED)}, ALL)
    assert (found.kind, found.ranks, found.sequence, found.proved, found.by_lines) == ("rank_conditional_collective", None, 6, True, True)
    assert found.sentence == (
        "only rank 0 runs train_step (train.py:123), whose barrier 6 of group default_pg met that of train_step (train.py:79)"
    )
    assert "ranks 1-3 wait in all_reduce 7 of group default_pg, [16] Float, at train_step (train.py:102)" in found.reasons_for


def test_a_call_too_many_before_several_of_its_kind_is_found_by_its_line():
    usual = [STEP, SAVED, ("barrier", 0, 80)] * 3
    others = {rank: ran(*usual, STEP) for rank in (1, 2, 3)}
    found = twice({**others, 0: ran(*usual[:7], ("barrier", 0, 123), SAVED, ("barrier", 0, 80))}, ALL)
    assert (found.kind, found.ranks, found.sequence) == ("rank_conditional_collective", None, 8)


def test_the_call_that_was_skipped_is_told_by_its_line_where_the_next_is_of_its_kind():
    usual = [STEP, SAVED, ("barrier", 0, 80)] * 2
    others = {rank: ran(*usual, STEP, SAVED, ("barrier", 0, 80)) for rank in (1, 2, 3)}
    found = twice({**others, 0: ran(*usual, STEP, ("barrier", 0, 80), STEP)}, ALL)
    assert (found.kind, found.ranks, found.sequence, found.proved) == ("rank_missing_collective", (0,), 8, True)
    assert found.sentence == (
        "rank 0 skipped barrier 8 of group default_pg at train_step (train.py:79), and ran the one at train_step (train.py:80) in its place"
    )


def test_two_lines_of_one_branch_are_no_reason_to_look_further_back():
    """Rank 0 always saves on a line of its own; it then skips a step."""
    others = {rank: ran(STEP, SAVED, STEP, STEP) for rank in (1, 2, 3)}
    found = twice({**others, 0: ran(STEP, ("barrier", 0, 70), STEP, ("barrier", 0, 70))}, ALL)
    assert found.sequence == 4
    first_save = twice({**others, 0: ran(STEP, ("barrier", 0, 70), ("broadcast", 16, 90))}, ALL)
    assert first_save.sequence == 3


def test_a_line_says_nothing_where_the_others_lines_are_not_recorded():
    others = {rank: recording(*past(5), pending(6)) for rank in (1, 2, 3)}
    found = twice({**others, 0: recording(*past(5, line=60), pending(6, "barrier", 0, line=57))}, ALL)
    assert (found.kind, found.ranks) == ("collective_mismatch_op", (0,))


def test_two_ranks_that_skipped_the_same_call_are_both_named():
    usual = (entry(WORLD, 1), entry(WORLD, 2, "barrier", 0), pending(3))
    five = {rank: recording(*usual) for rank in range(3)}
    five |= {rank: recording(*usual[:2], pending(3, "barrier", 0)) for rank in (3, 4)}
    found = twice(five, range(5), world_size=5)
    assert found.ranks == (3, 4)
    assert found.sentence == "ranks 3-4 wait in barrier 3 of group default_pg where ranks 0-2 wait in all_reduce 3"


def test_another_tensor_on_the_common_line_is_the_ranks():
    others = {rank: line_of_each(3, ("all_reduce", 16), 60) for rank in (1, 2, 3)}
    found = twice({**others, 0: line_of_each(3, ("all_reduce", 8), 60)}, ALL)
    assert (found.kind, found.ranks) == ("collective_mismatch_shape", (0,))


def test_another_operation_with_the_same_tensor_is_the_ranks_even_on_a_line_of_its_own():
    others = {rank: line_of_each(3, ("all_reduce", 16), 60) for rank in (1, 2, 3)}
    found = twice({**others, 0: line_of_each(3, ("broadcast", 16), 57)}, ALL)
    assert (found.kind, found.ranks) == ("collective_mismatch_op", (0,))


def test_two_odd_ranks_that_differ_are_each_told_with_their_own():
    five = {rank: recording(*past(5), pending(6)) for rank in range(3)}
    five |= {3: recording(*past(5), pending(6, "barrier", 0)), 4: recording(*past(5), pending(6, "broadcast"))}
    found = twice(five, range(5), world_size=5)
    assert (found.kind, found.ranks) == ("collective_mismatch_op", (3, 4))
    assert (
        found.sentence
        == "rank 3 waits in barrier 6 and rank 4 waits in broadcast 6 of group default_pg where ranks 0-2 wait in all_reduce 6"
    )


def test_those_who_went_on_and_wait_later_are_victims_too():
    recordings = {rank: recording(*past(6), pending(7, "barrier", 0)) for rank in range(3)}
    recordings[3] = recording(*past(5), pending(6, size=8))
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("collective_mismatch_shape", (3,), True)
    assert explain_desync(found).victim_ranks == (0, 1, 2)


def test_one_rank_alone_while_the_others_wait_in_something_not_recorded_blames_nobody():
    recordings = {0: recording(*past(5), pending(6, "barrier", 0)), **{rank: recording(*past(5)) for rank in (1, 2, 3)}}
    found = twice(recordings, ALL)
    assert (found.kind, found.ranks, found.proved) == ("rank_conditional_collective", None, False)


def test_all_in_and_none_out_blames_no_rank():
    found = twice({rank: recording(*past(5), pending(6)) for rank in range(4)}, ALL)
    assert (found.kind, found.ranks, found.proved) == ("collective_started_everywhere", None, False)


def test_a_wrapped_ring_and_fewer_operations_a_step_are_no_sign():
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
    assert twice(rings, (), world_size=8) is None


def test_a_rank_whose_ring_lost_the_group_is_not_behind_in_it():
    lost = recording(*(entry("1:other", number) for number in range(900, 940)))
    recordings = {**{rank: recording(*past(5), pending(6)) for rank in range(3)}, 3: lost}
    found = twice(recordings, {0, 1, 2})
    assert not found.proved
    assert "no recording of rank 3 tells where it is in this group" in found.reasons_against
    forgotten = {"pg_id 0": GroupStatus(enqueued=6, started=-1, completed=5)}
    hidden = FlightRecording(version="2.10", members={}, status=forgotten, entries=past(3, group="1:other"))
    found = twice({**recordings, 3: hidden}, {0, 1, 2})
    assert "no recording of rank 3 tells where it is in this group" in found.reasons_against


def test_ranks_outside_a_group_are_not_missing_from_it():
    recordings = {
        0: recording(*past(5), pending(3, group="1:pair01")),
        1: recording(*past(5), pending(3, group="1:pair01")),
        2: recording(*past(5)),
        3: recording(*past(5)),
    }
    assert twice(recordings, {0, 1}, PAIRS).kind == "collective_started_everywhere"
    assert twice(recordings, {0, 1}).kind == "collective_started_everywhere"


def test_groups_of_one_name_and_other_members_are_not_mixed():
    halves = {rank: (ProcessGroup(name="1", backend="gloo", ranks=(0, 1) if rank < 2 else (2, 3), timeout_s=None),) for rank in range(4)}
    recordings = {rank: recording(*past(3 if rank < 2 else 9, group="1:tp")) for rank in range(4)}
    recordings[0] = recording(*past(3, group="1:tp"), pending(4, group="1:tp"))
    recordings[1] = recording(*past(3, group="1:tp"), pending(4, group="1:tp"))
    assert twice(recordings, {0, 1}, halves).kind == "collective_started_everywhere"


def test_a_mismatch_that_all_left_behind_is_over():
    recordings = {rank: recording(*past(5), entry(WORLD, 6, "barrier" if rank == 3 else "all_reduce"), pending(7)) for rank in range(4)}
    assert twice(recordings, ALL).kind == "collective_started_everywhere"


def test_coalesced_calls_that_are_still_being_recorded_are_no_mismatch():
    calls = [pending(7, "all_reduce", 4), pending(7, "all_reduce", 8), pending(7, "coalesced", 0)]
    found = find_desync(None, {0: recording(*calls), 1: recording(*calls[:2]), 2: recording(*calls)}, {}, 3, ALL)
    assert found is None


def test_coalesced_calls_cut_by_the_ring_are_no_mismatch():
    whole = [entry(WORLD, 7, "all_reduce", 4), entry(WORLD, 7, "all_reduce", 8), entry(WORLD, 7, "coalesced", 0)]
    recordings = {0: recording(*whole, pending(8)), 1: recording(*whole[1:], pending(8)), 2: recording(whole[2], pending(8))}
    assert twice(recordings, {0, 1, 2}, world_size=3).kind == "collective_started_everywhere"
