"""The journal loses nothing to a disk that is full for a while, and reads what a killed agent left."""

import itertools
import json
import os
import subprocess
import sys
import textwrap

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.journal import JsonLines, read_events, whole_lines


def test_a_line_cut_by_a_killed_agent_is_left_out(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"at_unix_s": 1.0, "kind": "alert"}\n{"kind": "verd')
    assert [event["kind"] for event in read_events(tmp_path)] == ["alert"]


def test_what_a_killed_agent_could_not_carry_is_carried_once_and_nothing_twice(tmp_path):
    spool, shared = JsonLines(tmp_path / "spool.jsonl"), JsonLines(tmp_path / "shared.jsonl")
    for number in range(3):
        spool.append({"n": number})
    shared.append({"n": 0})
    until = spool.size_bytes()
    spool.append({"n": 3})  # told after the new agent has begun, and carried by itself
    shared.catch_up(spool, until)
    shared.append({"n": 3})
    shared.catch_up(spool, until)
    assert (tmp_path / "shared.jsonl").read_text() == (tmp_path / "spool.jsonl").read_text()
    JsonLines(tmp_path / "other.jsonl").append({"n": 9})
    JsonLines(tmp_path / "other.jsonl").catch_up(spool, until)
    assert (tmp_path / "other.jsonl").read_text() == '{"n":9}\n', "what is not its beginning is left alone"


def test_no_journal_yet_is_no_events(tmp_path):
    assert list(read_events(tmp_path)) == []


def test_lines_refused_by_a_full_disk_are_written_when_there_is_room_again(tmp_path):
    """The size limit of a process stands for the full disk: it cuts a write short just the same (setrlimit(2), RLIMIT_FSIZE)."""
    path = tmp_path / "events.jsonl"
    script = textwrap.dedent("""
        import resource, signal, sys
        from pathlib import Path
        from rankpatrol.journal import JsonLines
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        lines = JsonLines(Path(sys.argv[1]))
        lines.append({"n": 0})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
        assert not lines.append({"n": 1, "long": "x" * 40})
        assert not lines.append({"n": 2})
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert lines.append({"n": 3})
    """)
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=20)
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


def test_a_line_is_one_append(tmp_path):
    lines = JsonLines(tmp_path / "events.jsonl")
    assert lines.append({"a": 1})
    os.truncate(tmp_path / "events.jsonl", 0)  # a user empties it
    assert lines.append({"b": 2})
    assert msgspec.json.decode((tmp_path / "events.jsonl").read_bytes()) == {"b": 2}


def test_only_lines_that_speak_of_the_matter_are_decoded(tmp_path):
    lines = [f'{{"at_unix_s":{at}.0,"kind":"progress","step":{at}}}' for at in range(200_000)]
    lines[150_000] = '{"at_unix_s":150000.0,"kind":"alert","incident":1}'
    lines[150_001] = '{"at_unix_s":150001.0,"kind":"verdict","incident":1'
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    left_out = []
    assert [event["kind"] for event in read_events(tmp_path, about=b'"incident"', left_out=left_out.append)] == ["alert"]
    assert left_out == [1]
    assert sum(1 for _ in read_events(tmp_path)) == 199_999


@given(
    st.lists(st.binary(max_size=6).filter(lambda line: b"\n" not in line), max_size=8),
    st.lists(st.integers(0, 60), max_size=5),
    st.booleans(),
)
def test_lines_are_the_same_however_the_blocks_are_cut(lines, cuts, ended):
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    places = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    blocks = [content[begin:end] for begin, end in itertools.pairwise(places)]
    assert b"".join(whole_lines(blocks)) == content
