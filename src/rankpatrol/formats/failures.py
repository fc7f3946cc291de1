"""What a rank's last lines say of its end: an exception of its own, or only the echo of another rank's. One table, a new form is a new row.

Texts of gloo, NCCL and torchelastic as measured on torch 1.13 to 2.13; line numbers differ by version and are not matched.
"""

import re

from rankpatrol.core.records import Record

# What a rank prints when another one is gone or silent: never a first cause.
ECHOES = (
    r"Connection closed by peer",
    r"Read error \[[^\]]*\]:\d+: Connection reset by peer",
    r"Connection reset by peer",
    r"Broken pipe",
    r"Timed out waiting \d+ms for (?:send|recv) operation to complete",
    r"Gloo connectFullMesh failed",
    r"NCCL (?:error|Error).*(?:remote process exited|ncclRemoteError|unhandled system error)",
    r"Watchdog caught collective operation timeout",
    r"Process group watchdog thread terminated with exception",
    r"successfully reached monitoredBarrier, but received errors",
    r"Sending process \d+ closing signal",
    r"DataLoader worker \(pid.*\) (?:is killed by signal|exited unexpectedly)",
)
_ECHO = re.compile("|".join(ECHOES))
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
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):")
# Where a file does not even parse, its line comes last and without a function; where the script itself does not, no traceback comes before.
_FRAME = re.compile(_WHOSE + r'File "([^"]+)", line (\d+)(?:, in (\S+))?')
_UNPARSED = re.compile(_WHOSE + r"(?:SyntaxError|IndentationError|TabError): ")


class Failure(Record, frozen=True, kw_only=True):
    """How a rank's log ends: the exception and the line that raised it, where there was one, and whether it only echoes another's end.

    `timed_out`: it is the process group's own time-out that ended it.
    """

    exception: str | None
    message: str
    place: str | None
    echo: bool
    timed_out: bool = False


def last_failure(lines: tuple[str, ...]) -> Failure:
    """The last traceback of a log tail. Without one nothing is said, but an echo is still recognised."""
    echo = any(_ECHO.search(line) for line in lines[-60:])
    timed_out = any(_TIMEOUT.search(line) for line in lines[-60:])
    starts = [at for at, line in enumerate(lines) if _TRACEBACK.search(line)]
    if not starts and any(_UNPARSED.match(line) for line in lines[-5:]):
        starts = [at - 1 for at, line in enumerate(lines) if _FRAME.match(line)]
    if not starts:
        return Failure(exception=None, message="", place=None, echo=echo, timed_out=timed_out)
    place, raised, text = None, None, ""
    for line in lines[starts[-1] + 1 :]:
        if seen := _FRAME.match(line):
            place = f"{seen[3] or '<module>'} ({seen[1].rpartition('/')[2]}:{seen[2]})"
        elif ended := _RAISED.match(line):
            raised, text = ended[1], (ended[2] or "").strip()
            break
    echo = bool(_ECHO.search(text)) if raised else echo
    return Failure(exception=raised, message=text, place=place, echo=echo, timed_out=echo and timed_out)
