"""What observers write between the stacks they paste: whose stack follows, and facts of /proc beside it."""

import re

import msgspec

from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import ThreadStack


class Header(Record, frozen=True, kw_only=True):
    """A line that says whose stack follows."""

    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    parent_pid: int | None = None
    role: str | None = None
    command: str | None = None


class Fact(Record, frozen=True, kw_only=True):
    """A state letter or a wait channel of one process (None: the one at hand), as ps, /proc/PID/status and wchan print them."""

    pid: int | None = None
    state: str | None = None
    wait_channel: str | None = None
    threads: int | None = None


class ToldProcess(Record, frozen=True, kw_only=True):
    """One process as a text tells of it. `activity` is each thread's, by the tool that took the stack; None where it does not say.

    `failure` says why there is no stack, or of what the process died; `raised` is the error that its traceback ends in.
    """

    header: Header
    threads: tuple[ThreadStack, ...] = ()
    activity: tuple[bool | None, ...] = ()
    kernel: tuple[str, ...] = ()
    state: str | None = None
    wait_channel: str | None = None
    thread_count: int | None = None
    failure: str | None = None
    raised: str | None = None


# A header names its process and says nothing else; a line with another key (utime_delta=, util=) is a measurement.
def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HEADER_KEYS = _words(
    "rank local_rank global_rank node host hostname pid ppid parent role world_size gpu cmd command name tid time state stat wchan "
    "status threads comm device local_world_size"
)
_KEY = re.compile(r"(?<![\w./-])([A-Za-z_]\w*)\s*=\s*")
# A remark of the observer tells of several ranks, or of what changed between two looks.
_TELLS = re.compile(r"\branks\b|\b(?:same|identical|unchanged|again|later|since|last|after|steps?)\b", re.IGNORECASE)
_MARKED = re.compile(r"^\s*(?:[#=*>\[<@-]|={2,}|-{2,}|(?i:global |worker |process )?rank(?:\b|\d)|(?i:node|host)[ :=])", re.IGNORECASE)
_RANK = re.compile(r"(?<![A-Za-z])(?:global[ _-]?)?rank[ =:_#-]{0,3}(\d{1,5})\b", re.IGNORECASE)
_LOCAL = re.compile(r"local[ _-]?rank", re.IGNORECASE)
_PID = re.compile(r"(?<![A-Za-z_])pid[ =:#]{1,3}(\d+)", re.IGNORECASE)
_PARENT = re.compile(r"(?:ppid|parent[ _]pid|parent)[ =:#]{1,3}(\d+)", re.IGNORECASE)
_NODE = re.compile(r"(?:node|host|hostname)[ =:]{1,3}([\w.-]+)", re.IGNORECASE)
_LOADER_ROLE = re.compile(r"(data[ _-]?loader|pt_data|loader)[ _-]?(worker|process|child)|role=\S*worker|\(worker\b", re.IGNORECASE)
_ROLE = re.compile(r"role[ =:]{1,3}(\S+)")
_PROCESS = re.compile(r"^\s*(Parent )?Process (\d+)\b:?\s*(.*)$")
_SHOWN = re.compile(
    r"^\s*(?:[$#>] ?)?(?:sudo )?(?:cat )?/proc/(\d+)/(?:task/\d+/)?stack:?\s*$|"
    r"^\s*(?:[$#>] ?)(?:sudo )?(?:py-spy dump|pystack remote|gdb|eu-stack|pstack|gstack)\b.*?\b(\d{2,})\b[^\d]*$"
)
_ATTACHED = re.compile(r"^\s*(?:Attaching to process|PID:?|pid) (\d+)\s*(?:-\s*process)?:?\s*$")
_STATE = re.compile(r"(?<![\w-])(?:[Ss]tate|STATE|stat|STAT|[Ss]tatus|STATUS)[ \t=:]{1,4}\(?([RSDTtZIX])[sl+<NL]*(?!\w)")
_CHANNEL = re.compile(r"wchan[ \t=:]{1,4}([A-Za-z_][\w.]*)")
_PROC = re.compile(r"/proc/(\d+)/")
_THREADS = re.compile(r"(?:LWP|thread) count[^:=]*[:=]\s*(\d+)|(?<![A-Za-z])Threads:\s*(\d+)|nlwp[ =:]+(\d+)", re.IGNORECASE)


def read_header(line: str) -> Header | None:
    """The header a line is, or None. `Process 4711: python train.py` is py-spy's own."""
    if found := _PROCESS.match(line):
        parent, pid, command = found.groups()
        return Header(parent_pid=int(pid)) if parent else Header(pid=int(pid), command=command or None)
    if found := _SHOWN.match(line[:_LONGEST]):
        return Header(pid=int(found[1] or found[2]))
    if found := _ATTACHED.match(line):
        return Header(pid=int(found[1]))
    if len(line) > _LONGEST or not _MARKED.match(line):
        return None
    if _TELLS.search(line) or any(key.lower() not in _HEADER_KEYS for key in _KEY.findall(line)):
        return None
    return _header(line)


def _header(line: str) -> Header | None:
    ranks = [found for found in _RANK.finditer(line) if not _LOCAL.match(line, max(0, found.start() - 6))]
    if len({found[1] for found in ranks}) > 1:
        return None
    pid = _PID.search(re.sub(_PARENT, "", line))
    if not ranks and pid is None:
        return None
    node, parent, role = _NODE.search(line), _PARENT.search(line), _ROLE.search(line)
    words = role[1] if role else "dataloader_worker" if _LOADER_ROLE.search(line) else None
    return Header(
        rank=int(ranks[0][1]) if ranks else None,
        node=node[1] if node else None,
        pid=int(pid[1]) if pid else None,
        parent_pid=int(parent[1]) if parent else None,
        role=words,
    )


def read_fact(line: str) -> Fact | None:
    """A state, a wait channel or a count of threads that a line tells of one process, or None."""
    if len(line) > _LONGEST:
        return None
    state, channel, threads = _STATE.search(line), _CHANNEL.search(line), _THREADS.search(line)
    if not (state or channel or threads):
        return None
    pid = _PROC.search(line) or _PID.search(line)
    return Fact(
        pid=int(pid[1]) if pid else None,
        state=state[1] if state else None,
        wait_channel=channel[1] if channel and channel[1] != "0" else None,
        threads=int(next(number for number in threads.groups() if number)) if threads else None,
    )


def merge(old: Header, new: Header) -> Header:
    """What two headers in a row say of one process: the later fills what the earlier left open."""
    kept = {key: value for key, value in msgspec.structs.asdict(old).items() if value is not None}
    return Header(**{**msgspec.structs.asdict(new), **kept})


_LONGEST = 400
