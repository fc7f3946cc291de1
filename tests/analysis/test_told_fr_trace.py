"""The output of torch's own analyser: what it finds is taken, whom it blames is checked."""

import pytest

from rankpatrol.analysis.told.fr_trace import diagnose_fr_trace
from rankpatrol.analysis.told.pasted_dumps import diagnose_pasted_dumps, looks_like_pasted_dumps
from rankpatrol.formats.fr_trace_text import looks_like_fr_trace

HEAD = "loaded 8 files in 0.1042s\nbuilt groups, memberships\n"


def missing(ranks, world=8):
    named = "{" + ", ".join(map(str, ranks)) + "}"
    expected = "{" + ", ".join(map(str, range(world))) + "}"
    return (
        HEAD + "Not all ranks joining collective, sequence number: 4123\ninternal record id: 9114\ngroup info: 0:default_pg\n"
        f"collective: nccl:all_reduce\nmissing ranks: {named}\ninput sizes: [[16777216]]\nworld size: {world}\nexpected ranks: {expected}\n"
    )


def mismatch(accused, kind, expected, found, world=4):
    said = ", ".join(
        f"Culprit rank {rank}; Error type: {kind}, Expected collective type: '{expected}' does not match found collective type: '{found}'"
        for rank in accused
    )
    ranks = "{" + ", ".join(map(str, range(world))) + "}"
    return (
        HEAD + "Collective sequence number: 77 has errors\ninternal record id: 76\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\n"
        f"world size: {world}\nexpected ranks: {ranks}\ncollective state: scheduled\nerror msg: {said}\n"
    )


def test_a_missing_rank_is_named():
    text = missing([6])
    assert looks_like_fr_trace(text)
    found = diagnose_fr_trace(text)
    assert (found.verdict, found.cause, found.culprit_ranks) == ("hang", "rank_missing_collective", (6,))


def test_of_two_halves_nobody_is_named():
    assert diagnose_fr_trace(missing(range(4))).culprit_ranks is None


def test_the_one_that_differs_from_the_first_dump_is_named_where_the_others_do_not():
    found = diagnose_fr_trace(mismatch([2], "COLLECTIVE_TYPE_MISMATCH", "all_reduce", "all_gather"))
    assert (found.cause, found.culprit_ranks) == ("collective_mismatch_op", (2,))


def test_where_all_others_differ_from_the_first_dump_alike_that_one_is_odd():
    found = diagnose_fr_trace(mismatch([1, 2, 3], "SIZE_OR_SYNTAX_MISMATCH", "[[2048]]", "[[4096]]"))
    assert (found.cause, found.culprit_ranks) == ("collective_mismatch_shape", (0,))
    assert "calls ranks 1-3 culprits" in found.reasons_against[0]


def test_of_two_ranks_that_differ_nobody_is_named():
    assert diagnose_fr_trace(mismatch([1], "COLLECTIVE_TYPE_MISMATCH", "all_reduce", "broadcast", world=2)).culprit_ranks is None


@pytest.mark.parametrize("text", ["", "loaded 3 files", "Not all ranks joining collective, sequence number: 4\n"])
def test_without_a_finding_nothing_is_said(text):
    assert diagnose_fr_trace(text) is None


DUMP = (
    '{"rank": %d, "version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}, "entries": '
    '[{"record_id": 3, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": %d, "p2p_seq_id": 0, "op_id": 3, '
    '"profiling_name": "nccl:all_reduce", "input_sizes": [[64]], "output_sizes": [[64]], "input_dtypes": ["Float"], '
    '"output_dtypes": ["Float"], "state": "%s", "retired": %s, "timeout_ms": 600000, "is_p2p": false}]}'
)


def pasted(behind):
    lines = [DUMP % ((rank, 4, "completed", "true") if rank == behind else (rank, 5, "started", "false")) for rank in range(3)]
    return "\n".join(lines)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_pasted_dumps_name_the_rank_that_is_behind(behind):
    text = pasted(behind)
    assert looks_like_pasted_dumps(text)
    assert diagnose_pasted_dumps(text).culprit_ranks == (behind,)


def test_a_ranks_own_exception_beside_the_dumps_is_heard():
    text = "\n".join(pasted(1).splitlines()[::2]) + "\n[rank1]: ValueError: bad sample 8812\n"
    found = diagnose_pasted_dumps(text)
    assert (found.cause, found.culprit_ranks) == ("rank_exception_peers_wait", (1,))
