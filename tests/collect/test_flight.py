"""A recording over a Unix socket, from servers that answer, answer wrongly, slowly or not at all."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankpatrol.collect import flight
from rankpatrol.collect.flight import fetch_recording, fetch_recording_with_lines
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording

EMPTY = b'{"version": "2.10", "pg_config": {}, "pg_status": {}, "comm_lib_version": ""}'
ENTRY = (
    b'{"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 6, "p2p_seq_id": 0, "op_id": 6, "record_id": 5,'
    b'"profiling_name": "gloo:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]],'
    b'"output_dtypes": ["Float"], "state": "scheduled", "retired": false, "timeout_ms": 60000, "is_p2p": false}'
)
FULL = EMPTY[:-1] + b', "entries": [' + ENTRY + b"]}"


def answer(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n%s" % (status.encode(), len(body), body)


NOT_FOUND = answer(b"no such handler", "404 Not Found")


@contextmanager
def serving(path: Path, *answers: bytes, pause_s: float = 0.0) -> Iterator[list[bytes]]:
    """Each connection gets the next answer, a byte each `pause_s` where that is given; yields the requests."""
    asked: list[bytes] = []
    over = threading.Event()

    def speak(line: socket.socket, words: bytes) -> None:
        if not pause_s:
            line.sendall(words)
            return
        for byte in words:
            line.sendall(bytes([byte]))
            if over.wait(pause_s):
                return

    def serve() -> None:
        for words in answers:
            line, _ = server.accept()
            with line:
                asked.append(line.recv(4096))
                try:
                    speak(line, words)
                except OSError:
                    return  # the caller has gone

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            thread.join(5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "probe.sock"


def reason(found: FlightRecording | Missing) -> str:
    assert isinstance(found, Missing)
    return found.reason


def test_a_recording_is_fetched(path: Path) -> None:
    with serving(path, answer(FULL)) as asked:
        found = fetch_recording(str(path))
    assert isinstance(found, FlightRecording)
    assert [(entry.sequence, entry.retired) for entry in found.entries] == [(6, False)]
    assert asked[0].startswith(b"POST /handler/fr_trace_json HTTP/1.1\r\n")


def test_nccls_own_recorder_is_asked_where_the_first_has_nothing(path: Path) -> None:
    for first in (NOT_FOUND, answer(EMPTY)):
        with serving(path, first, answer(FULL)) as asked:
            found = fetch_recording(str(path))
        assert isinstance(found, FlightRecording)
        assert found.entries
        assert asked[1].startswith(b"POST /handler/dump_nccl_trace_json ")
        path.unlink()


def test_an_empty_recording_stands_where_there_is_no_other(path: Path) -> None:
    with serving(path, answer(EMPTY), NOT_FOUND):
        found = fetch_recording(str(path))
    assert isinstance(found, FlightRecording)
    assert found.entries == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (answer(b"{}"), "no flight recording"),
        (answer(b"boom", "500 Internal Server Error"), "answered 500: boom"),
        (b"SSH-2.0\r\n", "no HTTP"),
        (b"", "no HTTP"),
        (answer(FULL)[:-40], "no HTTP"),
    ],
)
def test_a_wrong_answer_is_missing_with_its_reason(path: Path, words: bytes, said: str) -> None:
    with serving(path, words):
        assert said in reason(fetch_recording(str(path)))


def test_a_server_that_lacks_every_recorder_is_said(path: Path) -> None:
    with serving(path, NOT_FOUND, NOT_FOUND):
        assert "no flight recorder" in reason(fetch_recording(str(path)))


def test_a_silent_and_a_trickling_server_cost_no_more_than_the_deadline(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        began = time.monotonic()
        assert "in time" in reason(fetch_recording(str(path), deadline_s=0.2))
        assert 0.2 <= time.monotonic() - began < 2
    path.unlink()
    with serving(path, answer(FULL), pause_s=0.05):
        began = time.monotonic()
        assert "in time" in reason(fetch_recording(str(path), deadline_s=0.4))
        assert 0.4 <= time.monotonic() - began < 2


def test_an_answer_without_end_is_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight, "MAX_BYTES", 1 << 20)
    with serving(path, answer(b" " * (4 << 20))):
        assert "larger than 1 MiB" in reason(fetch_recording(str(path)))


def test_no_socket_and_nobody_behind_it_are_told_apart(path: Path) -> None:
    assert "serves no flight recorder" in reason(fetch_recording(str(path)))
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert "is gone" in reason(fetch_recording(str(path)))


def test_a_rank_that_ends_while_it_is_asked_is_said_to_be_gone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def hang_up() -> None:
            line, _ = server.accept()
            line.recv(1)  # what is left unread resets the connection (unix(7))
            line.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        found = fetch_recording(str(path))
        thread.join(5)
    assert "is gone" in reason(found)


def test_lines_of_code_are_asked_of_the_probe_and_else_of_nccls_own_handler(path: Path) -> None:
    dump = (Path(__file__).parent.parent / "data" / "flight_recorder" / "hang" / "rank0.pickle").read_bytes()
    with serving(path, NOT_FOUND, answer(dump)) as asked:
        found = fetch_recording_with_lines(str(path), 2.0)
    assert isinstance(found, FlightRecording)
    assert found.entries[-1].frames[2].line == 32
    assert [words.split()[1] for words in asked] == [b"/handler/rankpatrol_lines", b"/handler/dump_nccl_trace_pickle"]
