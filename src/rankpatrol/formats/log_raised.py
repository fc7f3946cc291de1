"""Tracebacks out of mixed logs: which exception, whose, and where, even where ranks write between each other's lines."""

import re
from collections.abc import Iterator

from rankpatrol.core.records import Record
from rankpatrol.core.testimony import Stamp, Teller
from rankpatrol.formats.log_prefixes import Line

_HEADER = re.compile(r"Traceback \(most recent call last\):|Exception in thread ")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>\S+))?')
# The last line of a traceback: a class name, perhaps dotted, and perhaps a message.
_RAISED = re.compile(
    r"^\s{0,2}(?:E\s+|Error executing job.*?: )?(?P<name>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception"
    r"|Interrupt|Exit|Iteration|Fault|Died|Timeout|Warning)"
    r"|Exception|StopIteration|Empty|Full|NotFound\w*|Timeout|CalledProcessError|Unschedulable\w*))(?P<end>:\s?(?P<message>.*)|\s*$)"
)
# Warnings go on, and the kernel's Lustre client words its lines like Python.
_WARNING = re.compile(r"Warning$|^LustreError$")
# multiprocessing counts its processes from 1 (`SpawnProcess-2`), torch.multiprocessing.spawn from 0.
_PROCESS_HEADER = re.compile(r"^Process (?:Spawn|Fork|ForkServer)?Process-(?P<counted>\d+):\s*$")
_SPAWN_HEADER = re.compile(r"^-- Process (?P<rank>\d+) terminated with the following (?:error|exception)")
# Other names, such as `Empty`, are words as well: they count at the end of a traceback alone.
_SURE = re.compile(r"(?:Error|Exception|Interrupt|Exit|Fault|Died)$")
_BLANKS = re.compile(r"\s+")
_NOT_A_PLACE = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")
_MOST_FRAMES = 40
_MOST_OPEN = 4096

_Key = tuple[int | None, int | None, str | None, int | None]


class Raised(Record, frozen=True, kw_only=True):
    """An exception as its last line states it. `place` is the innermost frame of the user's own code where one is seen."""

    exception: str
    message: str
    place: str
    frames: str
    header: bool
    teller: Teller
    line: int
    order: int
    at: Stamp | None


class _Open:
    def __init__(self) -> None:
        self.frames: list[str] = []
        self.header = False


class Tracebacks:
    """Gathers the frames of each writer until its exception's last line comes."""

    def __init__(self) -> None:
        self._open: dict[_Key, _Open] = {}
        self._process: Teller | None = None

    def whose(self, line: Line) -> Teller:
        """The writer of a line: itself, or the process whose header stands above a traceback without prefixes."""
        teller = line.teller
        if teller.rank is not None or teller.local_rank is not None:
            return teller
        if seen := _PROCESS_HEADER.match(line.text):
            self._process = Teller(rank=int(seen["counted"]) - 1, host=teller.host, component="multiprocessing")
        elif seen := _SPAWN_HEADER.match(line.text):
            self._process = Teller(rank=int(seen["rank"]), host=teller.host)
        return self._process if self._process is not None and self._in_traceback(line.text) else teller

    def take(self, line: Line, number: int, order: int) -> Iterator[Raised]:
        """The exception that this line ends, if it ends one."""
        key = _key(line.teller)
        if _HEADER.search(line.text):
            self._open.setdefault(key, _Open()).header = True
            if len(self._open) > _MOST_OPEN:
                self._open.pop(next(iter(self._open)))
        elif frame := _FRAME.match(line.text):
            opened = self._open.setdefault(key, _Open())
            opened.frames = [*opened.frames[-_MOST_FRAMES:], _frame(frame)]
        elif (seen := _RAISED.match(line.text)) and not _WARNING.search(seen["name"]) and (key in self._open or _SURE.search(seen["name"])):
            opened = self._open.pop(key) if key in self._open else _Open()
            yield Raised(
                exception=seen["name"],
                message=_BLANKS.sub(" ", seen["message"] or "").strip()[:400],
                place=_place(opened.frames),
                frames=" < ".join(reversed(opened.frames[-12:])),
                header=opened.header,
                teller=line.teller,
                line=number,
                order=order,
                at=line.at,
            )

    def finish(self) -> Iterator[Raised]:
        """Nothing is made of a traceback without its last line: what was raised is not known."""
        self._open.clear()
        yield from ()

    def _in_traceback(self, text: str) -> bool:
        return bool(_HEADER.search(text) or _FRAME.match(text) or _RAISED.match(text) or text.startswith(("  ", "Process ", "-- Process")))


def _key(teller: Teller) -> _Key:
    return teller.rank, teller.local_rank, teller.host, teller.pid


def _frame(seen: re.Match[str]) -> str:
    return f"{seen['name'] or '?'} ({seen['file']}:{seen['line']})"


def _place(frames: list[str]) -> str:
    own = [frame for frame in frames if not any(part in frame for part in _NOT_A_PLACE)]
    if not own and not frames:
        return ""
    name, _, where = (own or frames)[-1].partition(" (")
    return f"{name} ({where.rpartition('/')[2].rstrip(')')})"
