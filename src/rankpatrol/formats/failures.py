"""What a rank's last lines say of its end: an exception of its own, or only the echo of another rank's. One table, a new form is a new row.

Texts of gloo, NCCL and torchelastic as measured on torch 1.13 to 2.13; line numbers differ by version and are not matched.
"""

import re
from itertools import takewhile
from typing import NamedTuple

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame

# What a rank prints when another one is gone or silent: never a first cause.
ECHOES = (
    r"Connection closed by peer \[",
    r"Connection closed by remote peer",
    r"Read error \[[^\]]*\]:\d+: Connection reset by peer",
    r"Timed out waiting \d+ms for (?:send|recv) operation to complete",
    r"Gloo connectFullMesh failed",
    r"NCCL (?:error|Error).*(?:remote process exited|ncclRemoteError|unhandled system error)",
    r"Watchdog caught collective operation timeout",
    r"Process group watchdog thread terminated with exception",
    r"successfully reached monitoredBarrier, but received errors",
    r"Sending process \d+ closing signal",
)
_ECHO = re.compile("|".join(ECHOES))
# A connection of the rank's own (to a server, to a child) breaks in the same words: only a transport of torch's makes an echo of them.
_BROKEN = re.compile(r"Connection reset by peer|Broken pipe")
_TRANSPORT = re.compile(
    r"gloo|NCCL|c10d|TCPStore|ProcessGroup|torch\.distributed|Dist(?:Backend|Network|Store)Error|application crash on rank 0"
)
# Frames of torch's own around every program that it starts, and around the user's modules: they carry nothing between ranks.
_TRANSPORT_FRAME = re.compile(r"/torch/distributed/(?!elastic/|run\.py|launch|fsdp/|_composable/|pipelining/)")
# torch says it through signal_handling.py at whatever line the signal arrived; the loader's own death is the cause.
_LOADER_DIED = re.compile(r"DataLoader worker \(pid.*\) (?:is killed by signal|exited unexpectedly)")
_LOADER_KILLED = re.compile(r"DataLoader worker \(pid (\d+)\) is killed by signal: ([A-Za-z][A-Za-z ]*)")
# Which of the echoes are a process group's own time-out.
_TIMEOUT = re.compile(
    r"Timed out waiting \d+ms for (?:send|recv) operation|Watchdog caught collective operation timeout|[Mm]onitoredBarrier.*timed? ?out"
)
# gloo, where a message is longer than the buffer that waits for it: ranks disagree on a collective (transport/tcp/pair.cc).
SIZES_DISAGREE = re.compile(r"enforce fail at .*gloo.*op\.preamble\.length <= op\.nbytes|Received data size doesn't match expected size")
# Whose line it is: torch's own hook writes the rank before each line of a traceback, torchrun's --tee the role and the rank.
_WHOSE = r"^(?:\[\w+\]:)*\s*"
# The last line of a Python traceback: a class name, perhaps dotted, and perhaps a message.
_RAISED = re.compile(_WHOSE + r"((?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration|Fault))(?::\s?(.*))?$")
# Right below a traceback's frames it is whatever stands there without indentation: classes may have any name.
_LEVELS = r"(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
_BELOW_FRAMES = re.compile(rf"^(?:\[\w+\]:)* ?(?!{_LEVELS})([A-Z]\w*|[A-Za-z_]\w*(?:\.(?:\w+|<locals>))+)(?::(?:\s(.*))?)?$")
_INDENTED = re.compile(r"^(?:\[\w+\]:)* ?(?:\s|$)")
# faulthandler, at a signal that kills: "Fatal Python error: …", then the thread it came to, innermost frame first.
_FATAL = re.compile(_WHOSE + r"(Fatal Python error: .+)$")
_FATAL_THREAD = re.compile(_WHOSE + r"Current thread 0x[0-9a-fA-F]+.*\(most recent call first\):")
_FATAL_FRAME = re.compile(_WHOSE + r'File "([^"]+)", line (\d+) in (.+)$')
# What the C++ library and glibc say before they abort.
_GLIBC = r"(?:free|malloc\w*|realloc|munmap_chunk|_int_\w+)\(\): .+|corrupted (?:size vs\.|double-linked).*|\*\*\* .+ \*\*\*.*"
_ABORTS = re.compile(_WHOSE + rf"(terminate called .+|.+: Assertion .+ failed\.?|{_GLIBC})$")
_WHAT = re.compile(_WHOSE + r"(what\(\): .*)$")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
# Where a file does not even parse, its line comes last and without a function; where the script itself does not, no traceback comes before.
_FRAME = re.compile(_WHOSE + r'File "([^"]+)", line (\d+)(?:, in (\S+))?')
_UNPARSED = re.compile(_WHOSE + r"(?:SyntaxError|IndentationError|TabError): ")


class LoaderDeath(Record, frozen=True, kw_only=True):
    """A loader process that died under its rank: which, and by which signal in torch's words, where it was said."""

    pid: int | None
    signal: str | None


class Failure(Record, frozen=True, kw_only=True):
    """How a rank's log ends: the exception and the line that raised it, where there was one, and whether it only echoes another's end.

    `timed_out`: it is the process group's own time-out that ended it. `transport`: it names a transport of torch's, or was raised in one.
    """

    exception: str | None
    message: str
    place: str | None
    echo: bool
    timed_out: bool = False
    transport: bool = False
    loader: LoaderDeath | None = None


def last_failure(lines: tuple[str, ...]) -> Failure:
    """The last traceback of a log tail. Without one nothing is said, but an echo is still recognised."""
    last = lines[-60:]
    echo, timed_out = any(_echoes(line) for line in last), any(_TIMEOUT.search(line) for line in last)
    raised = _raised(lines)
    if raised is None or raised.exception is None:
        place = None if raised is None else _say_place(raised)
        return Failure(exception=None, message="", place=place, echo=echo, timed_out=timed_out, transport=_names_transport(last))
    loader = _loader_death(raised.message, last)
    echo = _is_echo(raised)
    return Failure(
        exception=raised.exception,
        message=raised.message,
        place=None if loader else _say_place(raised),
        echo=echo,
        timed_out=echo and timed_out,
        transport=_from_transport(raised),
        loader=loader,
    )


class FatalWords(Record, frozen=True, kw_only=True):
    """What a process said when a signal killed it: the words for it, and its Python frames, innermost first."""

    words: str
    frames: tuple[Frame, ...] = ()


def fatal_words(lines: tuple[str, ...]) -> FatalWords | None:
    """The last words of faulthandler, of the C++ library or of glibc; None where none of them spoke."""
    for at in range(len(lines) - 1, -1, -1):
        if seen := _FATAL.match(lines[at]):
            return FatalWords(words=seen[1].strip(), frames=_fatal_frames(lines[at + 1 :]))
        if seen := _ABORTS.match(lines[at]):
            what = _WHAT.match(lines[at + 1]) if at + 1 < len(lines) else None
            return FatalWords(words=" ".join((seen[1] + (f" {what[1]}" if what else "")).split()))
    return None


def _fatal_frames(lines: tuple[str, ...]) -> tuple[Frame, ...]:
    starts = [at for at, line in enumerate(lines) if _FATAL_THREAD.match(line)]
    if not starts:
        return ()
    seen = (_FATAL_FRAME.match(line) for line in lines[starts[0] + 1 :])
    return tuple(Frame(frame[3], frame[1], int(frame[2])) for frame in takewhile(bool, seen) if frame)


class _Raised(NamedTuple):
    """The last traceback: its exception where the log holds it already, and its innermost frame."""

    exception: str | None
    message: str
    file: str | None
    line: str
    function: str


def _raised(lines: tuple[str, ...]) -> _Raised | None:
    starts = [at for at, line in enumerate(lines) if _TRACEBACK.search(line)]
    if not starts and any(_UNPARSED.match(line) for line in lines[-5:]):
        starts = [at - 1 for at, line in enumerate(lines) if _FRAME.match(line)]
    if not starts:
        return None
    seen, below = _Raised(None, "", None, "", ""), False
    for line in lines[starts[-1] + 1 :]:
        if frame := _FRAME.match(line):
            seen, below = seen._replace(file=frame[1], line=frame[2], function=frame[3] or "<module>"), True
        elif ended := _RAISED.match(line) or (_BELOW_FRAMES.match(line) if below else None):
            return seen._replace(exception=ended[1], message=(ended[2] or "").strip())
        else:
            below = below and _INDENTED.match(line) is not None
    return seen


def _say_place(raised: _Raised) -> str | None:
    return None if raised.file is None else f"{raised.function} ({raised.file.rpartition('/')[2]}:{raised.line})"


def _echoes(line: str) -> bool:
    return bool(_ECHO.search(line) or (_BROKEN.search(line) and _TRANSPORT.search(line)))


def _names_transport(lines: tuple[str, ...]) -> bool:
    return any(_TRANSPORT.search(line) for line in lines)


def _from_transport(raised: _Raised) -> bool:
    said = f"{raised.exception}: {raised.message}"
    return bool(_TRANSPORT.search(said) or _ECHO.search(said) or _TRANSPORT_FRAME.search(raised.file or ""))


def _is_echo(raised: _Raised) -> bool:
    """The store's client is C++: it raises a bare RuntimeError, where Python's own sockets and pipes raise an OSError with its number."""
    if not _BROKEN.search(raised.message):
        return bool(_ECHO.search(raised.message))
    bare = raised.exception == "RuntimeError" and _BROKEN.match(raised.message) is not None
    return bare or _from_transport(raised)


def _loader_death(message: str, lines: tuple[str, ...]) -> LoaderDeath | None:
    """Where the loader's process was missed only later, the signal stands in the exception before."""
    if not _LOADER_DIED.search(message):
        return None
    told = [seen for line in lines if (seen := _LOADER_KILLED.search(line))]
    return LoaderDeath(pid=int(told[-1][1]), signal=told[-1][2].strip()) if told else LoaderDeath(pid=None, signal=None)
