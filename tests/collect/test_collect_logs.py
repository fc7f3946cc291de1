import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.collect.logs import LogTail
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import LogSample


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank3.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def read(tail: LogTail) -> LogSample:
    sample = tail.read()
    assert isinstance(sample, LogSample), sample
    return sample


def test_a_log_that_is_not_there_yet_is_missing_and_found_later(log: Path) -> None:
    tail = LogTail(str(log))
    assert tail.read() == Missing(f"cannot read the log {log}: No such file or directory")
    append(log, b"hello\n")
    assert read(tail) == LogSample(6, ("hello",), None)


def test_lines_and_steps_are_gathered_over_rounds(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"step 1 loss 3.2\n")
    assert read(tail).step == 1
    append(log, b"step 2 loss 3.1\nepoch 900\n")
    assert read(tail) == LogSample(42, ("step 1 loss 3.2", "step 2 loss 3.1", "epoch 900"), 2, ("3.2", "3.1"))


def test_signs_of_life_move_the_size_but_not_the_step(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"step 7\n")
    before = read(tail)
    append(log, b"still alive, step 99\nheartbeat 4512\n")
    after = read(tail)
    assert after.size_bytes > before.size_bytes
    assert after.step == before.step == 7


def test_an_unended_line_is_shown_and_joined_when_its_rest_comes(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"Traceback (most rec")
    assert read(tail).tail == ("Traceback (most rec",)
    append(log, b"ent call last):\n")
    assert read(tail).tail == ("Traceback (most recent call last):",)


def test_a_number_at_the_end_of_an_unended_line_counts_once_it_stands_still(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"step 12")
    assert read(tail).step is None
    append(log, b"34")
    assert read(tail).step is None
    assert read(tail).step == 1234


def test_a_progress_bar_shows_its_last_state_and_counts_each(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"\r  0%|   | 0/500 [00:00<?, ?it/s]\r  1%|   | 5/500 [00:01<01:40, 4.9it/s]\r  2%|#  | 10/500 [00:02<01:40, 4.9it/s]\r")
    assert read(tail) == LogSample(log.stat().st_size, ("  2%|#  | 10/500 [00:02<01:40, 4.9it/s]",), 10)
    append(log, b"\r  3%|#  | 15/500 [00:03<01:40, 4.9it/s]\nnext\r\n")
    assert read(tail).tail == ("  3%|#  | 15/500 [00:03<01:40, 4.9it/s]", "next")


def test_colours_controls_and_broken_utf8_do_no_harm(log: Path) -> None:
    append(log, b"\x1b[32mstep\x1b[0m \x1b[1m41\x1b[0m\n\x1b]0;title\x07caf\xc3\xa9 \xff\xfe\x00|\x1b[A\n")
    assert read(LogTail(str(log))).tail == ("step 41", "caf\u00e9 \ufffd\ufffd|")
    assert read(LogTail(str(log))).step == 41


def test_a_truncated_log_is_read_from_its_start_again(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"step 8 and a long line\npart")
    read(tail)
    log.write_bytes(b"step 9\n")
    sample = read(tail)
    assert (sample.size_bytes, sample.step) == (7, 9)
    assert sample.tail[-1] == "step 9"


def test_a_rotated_log_is_followed_to_the_new_file(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"step 8\n")
    read(tail)
    log.rename(log.with_suffix(".1"))
    append(log, b"step 9 in a longer line than before\n")
    assert read(tail).tail == ("step 8", "step 9 in a longer line than before")


def test_a_reader_that_fell_behind_skips_to_the_end(log: Path) -> None:
    tail = LogTail(str(log))
    append(log, b"early\n")
    read(tail)
    append(log, b"".join(b"step %d\n" % number for number in range(100_000)))
    sample = read(tail)
    assert sample.step == 99_999
    assert len(sample.tail) == 200
    assert sample.tail[-1] == "step 99999"


def test_the_tail_is_bounded_in_lines_and_characters(log: Path) -> None:
    append(log, b"".join(b"%05d %s\n" % (number, b"x" * 1000) for number in range(150)))
    tail = read(LogTail(str(log))).tail
    assert sum(len(line) + 1 for line in tail) <= 32 << 10
    assert tail[-1].startswith("00149")
    assert len(tail) > 30


def test_a_line_without_end_costs_bounded_memory(log: Path) -> None:
    tail = LogTail(str(log))
    for _ in range(3):
        append(log, b"y" * 200_000)
        sample = read(tail)
    assert len(sample.tail) == 1
    assert len(sample.tail[0]) <= 2001
    assert len(tail._partial) <= 64 << 10


def test_a_fifo_in_the_place_of_a_log_does_not_block(log: Path) -> None:
    os.mkfifo(log)
    assert LogTail(str(log)).read() == Missing(f"the log {log} is no regular file")


lines = st.sampled_from(
    [
        b"step 12 loss 3",
        b"\r5/500 [00:01<01:40, 4.9it/s]",
        b"epoch 3",
        b"\x1b[32mok\x1b[0m",
        b"\xc3\xa9t\xc3\xa9",
        b"",
        b"still alive",
        b"a\r",
        b"x",
    ]
)


@given(st.lists(lines, max_size=12), st.lists(st.integers(1, 15), max_size=20))
def test_it_does_not_matter_in_which_pieces_a_log_arrives(content: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(content) + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        whole, pieces = Path(folder, "whole.log"), Path(folder, "pieces.log")
        whole.write_bytes(data)
        tail = LogTail(str(pieces))
        for cut in cuts:
            append(pieces, data[:cut])
            data = data[cut:]
            if data:
                tail.read()
        append(pieces, data)
        assert tail.read() == LogTail(str(whole)).read()
