"""What collected logs say of a job, and what must stay true of the answer when the log is changed."""

import random

import pytest

from log_texts import HEAD, PREFIX, answer_of, collected, named, permuted, short, waited

CASES = collected()
ORDER = {"suspected": 0, "supported": 1, "proved": 2}
NOISE = (
    'INFO:     10.0.0.11:41657 - "GET /metrics HTTP/1.1" 200 OK',
    "/env/lib/python3.10/site-packages/torch/nn/parallel/distributed.py:12: UserWarning: Grad strides do not match.",
    "wandb: Tracking run with wandb version 0.16.1",
    "-----------------------------------------------",
    "",
    "tensor([0.1, 0.2, 0.3], device='cuda:0')",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_one_of_the_accepted(name):
    text, accepted = CASES[name]
    assert short(answer_of(text)) in accepted


@pytest.mark.parametrize("name", CASES)
def test_an_answer_has_a_sentence_and_a_reason(name):
    answer = answer_of(CASES[name][0])
    assert answer.sentence
    assert answer.reasons_for


# Whose rank is told in another way than by "rank N": a process counted from 1, a list in brackets, the store that is always rank 0's,
# a table of processes or pods.
BY_POSITION = {
    "057",
    "077",
    "map_benign",
    "others_wait",
    "others_wait_eval",
    "download_stuck_others",
    "desync",
    "desync2",
    "spawn",
    "spawn_sig",
    "compute_times_by_rank",
    "ray_same_pid_on_two_nodes",
    "pod_oom_described",
}


@pytest.mark.parametrize("name", sorted(set(CASES) - BY_POSITION))
@pytest.mark.parametrize("seed", [1, 2])
def test_permuting_the_ranks_never_accuses_another_rank(name, seed):
    text, accepted = CASES[name]
    ranks = list(range(16))
    random.Random(seed).shuffle(ranks)
    order = dict(enumerate(ranks))
    allowed = [None, *([order.get(rank, rank) for rank in answer[2]] for answer in accepted if answer[2])]
    got = named(answer_of(permuted(text, order)))
    assert got is None or any(set(got) <= set(ranks or ()) for ranks in allowed)


# A line between the two halves of a wrapped one belongs to nobody's terminal.
WRAPPED = {"wrapped_padded"}


@pytest.mark.parametrize("name", sorted(set(CASES) - WRAPPED))
def test_noise_does_not_change_the_answer(name):
    text = CASES[name][0]
    lines = text.split("\n")
    noisy = [noise for at, line in enumerate(lines) for noise in (line, NOISE[at % len(NOISE)])] if '"' not in text[:1] else lines
    assert short(answer_of("\n".join(noisy))) == short(answer_of(text))


@pytest.mark.parametrize("name", CASES)
def test_less_evidence_never_raises_the_certainty(name):
    """Taking any one line away: the same answer is never surer, and whoever is newly named is no more than suspected."""
    text = CASES[name][0]
    whole = answer_of(text)
    lines = text.split("\n")
    for at in range(len(lines)):
        less = answer_of("\n".join(lines[:at] + lines[at + 1 :]))
        if short(less) == short(whole):
            assert ORDER[less.certainty] <= ORDER[whole.certainty], lines[at]
        elif less.verdict != "benign_wait" and not set(named(less) or ()) <= set(named(whole) or ()):
            assert less.certainty == "suspected", lines[at]


@pytest.mark.parametrize("version", [*HEAD, "1.13", "2.0", "2.5"])
@pytest.mark.parametrize("prefix", PREFIX)
@pytest.mark.parametrize("op", ["ALLREDUCE", "_REDUCE_SCATTER_BASE", "BROADCAST", "ALLTOALL_BASE"])
def test_the_one_silent_rank_is_named_in_every_form(version, prefix, op):
    text = "".join(waited(rank, version=version, prefix=prefix, op=op) for rank in (3, 0, 1, 4))
    assert named(answer_of(text)) == [2]


@pytest.mark.parametrize("size", [4, 64, 512])
def test_the_silent_rank_is_named_at_any_size(size):
    absent = size // 2 - 1
    text = "".join(waited(rank) for rank in range(size) if rank != absent)
    answer = answer_of(f"WORLD_SIZE={size}\n{text}")
    assert (named(answer), answer.certainty) == ([absent], "suspected")


def test_of_two_ranks_the_one_that_says_nothing_is_not_named():
    assert named(answer_of(f"WORLD_SIZE=2\n{waited(1)}")) is None


def test_two_silent_ranks_are_not_named():
    assert named(answer_of("WORLD_SIZE=8\n" + "".join(waited(rank) for rank in (0, 1, 2, 4, 5, 7)))) is None


def test_a_rank_inside_a_group_is_no_global_rank():
    line = "[E ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 9 Rank {r}] Watchdog caught collective operation timeout: "
    work = "WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600001 milliseconds.\n"
    text = "".join(line.format(r=rank) + work for rank in (1, 2, 3))
    assert named(answer_of(text)) is None


@pytest.mark.parametrize("seed", range(3))
def test_lines_mixed_between_ranks_give_the_same_answer(seed):
    blocks = [waited(rank).splitlines() for rank in range(8) if rank != 5]
    shuffled = random.Random(seed)
    lines = []
    while any(blocks):
        lines.append(shuffled.choice([block for block in blocks if block]).pop(0))
    assert named(answer_of("\n".join(lines))) == [5]


def test_a_behind_rank_is_supported_by_its_own_status():
    text = "".join(waited(rank) for rank in (0, 1, 3))
    told = (
        "[rank2]:[E722 09:00:11.1188 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a "
        "collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 811, last completed "
        "NCCL work: 811.This is"
    )
    answer = answer_of(text + told)
    assert (answer.cause, named(answer), answer.certainty) == ("rank_missing_collective", [2], "supported")
