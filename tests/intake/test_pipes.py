"""Pipes are read where somebody means them, and waited for no longer than their first byte may take."""

import os
import threading

import pytest

from rankpatrol.core.errors import BadInput
from rankpatrol.intake import sources
from rankpatrol.intake.sources import Source, chunks, find


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_that_a_walk_meets_is_left_alone(tmp_path, pipe):
    (tmp_path / "a.log").write_text("x")
    found, missing = find((str(tmp_path),))
    assert [source.path.name for source in found] == ["a.log"]
    assert missing == []


def test_a_named_pipe_without_a_writer_is_given_up(monkeypatch, pipe):
    monkeypatch.setattr(sources, "_FIRST_BYTE_WITHIN_S", 0)
    found, _ = find((str(pipe),))
    with pytest.raises(BadInput, match="nothing was written"):
        list(chunks(found[0]))


def test_a_named_pipe_is_read_to_its_writers_end(pipe):
    def write():
        with pipe.open("w") as out:
            for _ in range(1000):
                out.write("a line of a log\n" * 100)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    found, _ = find((str(pipe),))
    assert sum(map(len, chunks(found[0]))) == 1_600_000
    writer.join(10)


def test_a_file_that_has_become_a_pipe_is_refused(pipe):
    with pytest.raises(BadInput, match="no plain file any more"):
        list(chunks(Source(str(pipe), pipe, 7)))


def test_what_a_shell_substitutes_is_read_though_its_writer_has_gone():
    reading, writing = os.pipe()
    os.write(writing, b"all of it")
    os.close(writing)
    found, _ = find((f"/dev/fd/{reading}",))
    assert b"".join(chunks(found[0])) == b"all of it"
    os.close(reading)
