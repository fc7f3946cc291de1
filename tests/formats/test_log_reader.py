"""Lines of logs into facts: prefixes, cut and wrapped lines, tracebacks; and nothing that a log may hold makes it fail."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.core.testimony import Kind, Teller
from rankpatrol.formats.log_names import teller_of
from rankpatrol.formats.log_prefixes import peel
from rankpatrol.formats.log_reader import LONGEST_LINE, Reader
from rankpatrol.formats.log_sieve import Sieve
from rankpatrol.formats.log_stamps import stamp_in
from rankpatrol.formats.log_tables import REGEXES, ROWS


def facts(text):
    reader = Reader("log")
    found = [fact for number, line in enumerate(text.split("\n"), 1) for fact in reader.read(number, line)]
    return [*found, *reader.finish()]


@pytest.mark.parametrize(
    ("line", "teller"),
    [
        ("[rank3]: step 12", Teller(rank=3)),
        ("[default3]: step 12", Teller(local_rank=3)),
        ("[trainer0]: step 12", Teller(local_rank=0)),
        (" 11: step 12", Teller(rank=11)),
        ("[1,7]<stderr>:step 12", Teller(rank=7)),
        ("[7]<stdout>:step 12", Teller(rank=7)),
        ("(TrainActor pid=77, ip=10.0.0.4) step 12", Teller(pid=77, host="10.0.0.4", component="TrainActor")),
        ("(TrainActor pid=77) [rank2]: step 12", Teller(rank=2, pid=77, component="TrainActor")),
        ("[pod/train-worker-3/pytorch] [rank3]: step 12", Teller(rank=3, component="train-worker-3")),
        ("2026-07-22T09:00:10.1188Z stderr F [rank5]: step 12", Teller(rank=5)),
        ("2026-07-22 09:00:10,118 - root - INFO - RANK 4 - step 12", Teller(rank=4)),
        ("node-a:2101:2140 [1] NCCL INFO Using network IB", Teller(host="node-a", pid=2101, local_rank=1)),
        ("\x1b[36m(Actor pid=9)\x1b[0m [rank1]: step 12", Teller(rank=1, pid=9, component="Actor")),
        ("[80746] [rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] x", Teller(rank=0)),
        ("rank=64 phase=training step=183", Teller(rank=64)),
        ("step 12 of rank 3", Teller()),
    ],
)
def test_the_writer_of_a_line_is_known_from_what_stands_before_it(line, teller):
    assert peel(line).teller == teller


def test_a_rank_inside_a_group_is_kept_apart_from_the_global_one():
    line = peel("[rank13]:[E722 09:00:10.118820000 ProcessGroupNCCL.cpp:632] [PG ID 5 PG GUID 12(EXPERT) Rank 1] failure")
    assert (line.teller.rank, line.group_rank, line.group, line.group_name) == (13, 1, "12", "EXPERT")


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("2026-07-22 08:00:12.5 x", 28812.5),
        ("2025-06-18,09:12:44 | INFO", 33164.0),
        ("2023-04-11_10:33:57", 38037.0),
        ("04-16 00:03:26", 206.0),
        ("Jul 22 08:00:12 node kernel:", 28812.0),
        ("at 08:00:12", 28812.0),
    ],
)
def test_a_time_is_read_in_each_form(text, second):
    stamp = stamp_in(text)
    assert stamp is not None
    assert stamp.second_of_day_s == second


def test_two_ranks_in_one_line_are_told_apart():
    found = facts(
        "tokenizing:  9% | 280040/2969000 [29:55<4:47:21][rank2]:[E722 09:00:10.1188 ProcessGroupNCCL.cpp:4] [Rank 2] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800368 milliseconds before."
    )
    assert [(fact.kind, fact.teller.rank) for fact in found] == [(Kind.PHASE, None), (Kind.TIMED_OUT, 2)]


def test_a_line_that_a_terminal_wrapped_in_a_word_is_read():
    found = facts(
        "  what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) r\n"
        "an for 1804586 milliseconds"
    )
    assert [(fact.kind, fact.values["ran_ms"]) for fact in found] == [(Kind.TIMED_OUT, "1804586")]


def test_a_traceback_between_other_ranks_lines_is_whole():
    found = facts(
        "[rank1]: Traceback (most recent call last):\n[rank0]: step 9\n"
        "[rank1]:   File \"/w/train.py\", line 7, in step\n[rank0]: step 10\n[rank1]: KeyError: 'x'"
    )
    (raised,) = [fact for fact in found if fact.kind is Kind.RAISED]
    assert (raised.word, raised.teller.rank, raised.values["place"]) == ("KeyError", 1, "step (train.py:7)")


def test_a_warning_is_no_exception():
    assert not [fact for fact in facts("UserWarning: something is deprecated") if fact.kind is Kind.RAISED]


def test_every_row_has_a_hint_that_its_regex_can_meet():
    for row in ROWS:
        assert row.hints, row.regex
        assert all(hint == hint.lower() and "_" not in hint for hint in row.hints)


@pytest.mark.parametrize(
    ("path", "teller"),
    [
        ("run/attempts/0/rank12.log", Teller(rank=12)),
        ("logs/none_abc/attempt_0/3/stderr.log", Teller(local_rank=3)),
        ("out/log_rank_7.txt", Teller(rank=7)),
        ("slurm-8123.out", Teller()),
    ],
)
def test_a_files_name_says_whose_log_it_is(path, teller):
    assert teller_of(path) == teller


_PIECES = st.sampled_from(
    [
        "[rank3]:", "[E722 09:00:10.1188 ProcessGroupNCCL.cpp:632] ", "[Rank 1] ",
        "Watchdog caught collective operation timeout: ", "WorkNCCL(",
        "SeqNum=9, ",
        "OpType=ALLREDUCE, ", "Timeout(ms)=1)", " ran for 5 milliseconds", "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "KeyError: 'x'",
        "slurmstepd: error: ", "*** JOB 3 ON n CANCELLED AT ", "DUE TO TIME LIMIT",
        "NVRM: Xid (PCI:0000:17:00): 79", "step 12",
        "rank 4", "\r", "\0", "-- now=", "12:00:00",
    ]
)  # fmt: skip


@given(st.lists(st.one_of(_PIECES, st.text(max_size=30)), max_size=40))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_reader_fail(pieces):
    for fact in facts("".join(pieces)):
        assert len(fact.text) <= 400


@given(st.lists(st.binary(max_size=200), max_size=30), st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_no_bytes_make_the_sieve_fail_and_line_numbers_rise(chunks, head, tail):
    sieve = Sieve(head_bytes=head, tail_bytes=tail)
    numbers = [number for chunk in chunks for number, _ in sieve.feed(chunk)] + [number for number, _ in sieve.finish()]
    assert numbers == sorted(numbers)
    assert not numbers or numbers[-1] <= b"".join(chunks).count(b"\n") + 1


@given(st.lists(st.text(alphabet="abc 123", max_size=20), max_size=60), st.integers(1, 64))
@settings(max_examples=200, deadline=None)
def test_a_short_log_is_read_line_by_line_however_it_is_cut(lines, size):
    text = "\n".join(lines).encode()
    sieve = Sieve(head_bytes=1 << 20, tail_bytes=1 << 20)
    seen = [got for at in range(0, len(text), size) for got in sieve.feed(text[at : at + size])] + list(sieve.finish())
    want = "\n".join(lines).split("\n")
    assert seen == [(number, line) for number, line in enumerate(want, 1)][: len(seen)]
    assert len(seen) >= len(want) - 1


def test_a_failure_in_the_middle_of_a_long_log_is_found_with_its_line_number():
    usual = "".join(f"[rank{n % 8}]: 2026-07-22 08:00:{n % 60:02} step {n} loss 1.{n % 1000}\n" for n in range(60_000))
    failure = "[rank5]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    text = (usual + failure + usual).encode()
    sieve = Sieve(head_bytes=4096, tail_bytes=4096)
    seen = [got for at in range(0, len(text), 100_000) for got in sieve.feed(text[at : at + 100_000])] + list(sieve.finish())
    assert (60_001, failure.strip()) in seen
    assert len(seen) < 2000


def test_lines_that_many_files_share_are_not_read_in_each_of_them():
    shapes, read_closely = {}, {}
    lines = [f"step {n} loss 2.{n}" for n in range(40)]
    for file in range(20):
        sieve = Sieve(head_bytes=1 << 20, tail_bytes=1 << 20, shapes=shapes, read_closely=read_closely)
        got = [*sieve.feed("\n".join(lines).encode() + b"\n"), *sieve.finish()]
        if file == 0:
            assert [text for _, text in got] == lines
    assert got == [(40, lines[-1])]


def test_what_always_matters_is_read_in_each_of_many_files():
    shapes, read_closely = {}, {}
    line = "[rank{r}]: RuntimeError: CUDA error: uncorrectable ECC error encountered"
    for _ in range(20):
        sieve = Sieve(head_bytes=1 << 20, tail_bytes=1 << 20, shapes=shapes, read_closely=read_closely)
        text = "\n".join(line.format(r=r) for r in range(40)) + "\n"
        assert len([*sieve.feed(text.encode()), *sieve.finish()]) == 40


HOSTILE = (
    "a", "a-", "a.", "1", "1:", "1=2 ", "rank ", "rank=1 ", "ranks 1-2 ", "before 1 s ", "-", '"', "(", "[", ".. ", "saved -of-", "ibstat ",
)  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_no_line_keeps_a_row_busy(piece):
    """The longest line that is read, made of one piece again and again: each row says within half a second that it does not fit."""
    line = (piece * LONGEST_LINE)[:LONGEST_LINE]
    for row, regex in zip(ROWS, REGEXES, strict=True):
        began = time.process_time()
        regex.search(line)
        assert time.process_time() - began < 0.5, row
