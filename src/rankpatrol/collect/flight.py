"""A rank's flight recorder, asked of torch's worker server on the probe's socket: its threads answer however stuck Python is."""

import errno
import http.client
import io
import socket
import time
from collections.abc import Callable, Iterable

from rankpatrol.core.errors import BadInput
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import FlightRecording
from rankpatrol.formats.flight_recorder import parse_json, parse_pickle

# NCCL's recorder is one of its own; where it is not built in, its handler is not there.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
# The same with lines of code, as pickles: the probe's own handler (launch/probe/server.py), and torch's of NCCL's recorder.
LINE_HANDLERS = ("rankpatrol_lines", "dump_nccl_trace_pickle")
MAX_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 18


class _Answer(io.BytesIO):
    """A whole answer, in the place of a socket."""

    def makefile(self, *_: object) -> io.BytesIO:
        return self


def fetch_recording(socket_path: str, deadline_s: float = 2.0) -> FlightRecording | Missing:
    """The recording with entries in it, of the first recorder that has some; all within `deadline_s`."""
    return _fetch(socket_path, deadline_s, HANDLERS, parse_json)


def fetch_recording_with_lines(socket_path: str, deadline_s: float) -> FlightRecording | Missing:
    """The same with the line of code of each entry. A rank that holds the GIL does not answer; the first answer takes seconds."""
    return _fetch(socket_path, deadline_s, LINE_HANDLERS, parse_pickle)


def _fetch(
    socket_path: str, deadline_s: float, handlers: Iterable[str], parse: Callable[[bytes], FlightRecording]
) -> FlightRecording | Missing:
    until = time.monotonic() + deadline_s
    empty: FlightRecording | None = None
    for handler in handlers:
        body = ask(socket_path, handler, until)
        if body is None:
            continue
        if isinstance(body, Missing):
            return empty or body
        try:
            recording = parse(body)
        except BadInput as problem:
            return Missing(f"the rank's answer is no flight recording: {problem}")
        if recording.entries:
            return recording
        empty = empty or recording
    return empty or Missing("the rank's worker server has no flight recorder")


def ask(socket_path: str, handler: str, until: float) -> bytes | Missing | None:
    """The answer's body, or None where the server does not know the handler."""
    request = f"POST /handler/{handler} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_left_s(until))
            line.connect(socket_path)
            line.sendall(request)
            return _body(_read_all(line, until))
    except TimeoutError:
        return _TIMED_OUT
    except OSError as problem:
        if problem.errno == errno.ENOENT:
            return Missing("the rank's probe serves no flight recorder: no process group yet, or this torch has no worker server")
        if problem.errno in {errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE}:
            return Missing("the rank's worker server is gone")
        return Missing(f"the rank's worker server cannot be asked: {problem.strerror or problem}")


_TIMED_OUT = Missing("the rank's worker server did not answer in time")


def timed_out(answer: bytes | Missing | None) -> bool:
    """True where the server was asked, and time went by without an answer."""
    return answer == _TIMED_OUT


def _left_s(until: float) -> float:
    left_s = until - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _read_all(line: socket.socket, until: float) -> bytes | Missing:
    """Everything until the server closes: one deadline for all of it."""
    read = bytearray()
    while len(read) <= MAX_BYTES:
        line.settimeout(_left_s(until))
        chunk = line.recv(_CHUNK_BYTES)
        if not chunk:
            return bytes(read)
        read += chunk
    return Missing(f"the rank's flight recording is larger than {MAX_BYTES >> 20} MiB")


def _body(answer: bytes | Missing) -> bytes | Missing | None:
    if isinstance(answer, Missing):
        return answer
    response = http.client.HTTPResponse(_Answer(answer))  # type: ignore[arg-type]  # only makefile() is asked of it
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError) as problem:
        return Missing(f"the rank's worker server answered no HTTP: {problem!r}")
    if response.status == http.HTTPStatus.NOT_FOUND:
        return None
    if response.status != http.HTTPStatus.OK:
        return Missing(f"the rank's worker server answered {response.status}: {body[:200].decode(errors='replace')}")
    return body
