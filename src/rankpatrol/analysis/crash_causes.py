"""Of what the first rank to fail has failed."""

import re

from rankpatrol.analysis.ends import End, end_of
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import Snapshot
from rankpatrol.formats.failures import LoaderDeath

_BY_SIGNAL = {6: "sigabrt", 11: "sigsegv"}
_SHARED_MEMORY = re.compile(
    # torch names its shared memory /torch_PID_…; the room that is missing there is not the disk's.
    r"unable to (?:write|mmap|open).*(?:/dev/shm|shared memory|</torch_\d)|insufficient shared memory",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
# What torch's writer says when the disk takes no more (inline_container.cc): it does not say why.
_TORN_SAVE = re.compile(r"unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing|basic_ios::clear")
# A write of torch's is at least a page, and the torn file stays: a disk with more room than this was not full a moment ago.
_NO_ROOM_BYTES = 1 << 20
_LINE_MOST = 200
_GPU_MEMORY = re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation")
Cause = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def cause_of(snapshot: Snapshot, end: End) -> Cause:
    """Cause, phrase, reasons and advice for the first failing rank."""
    said = "\n".join(end.tail[-80:])
    if _SHARED_MEMORY.search(said):
        return "shm_too_small", "found /dev/shm full", ("its log says so",), ("Give the job more shared memory (--shm-size, an emptyDir)",)
    if end.status < 0:
        return _signalled(snapshot, end)
    if end.failure.loader is not None:
        return _loader_died(snapshot, end.failure.loader)
    if _GPU_MEMORY.search(said):
        return (
            "gpu_oom",
            f"ran out of GPU memory{_at(end)}",
            ("its log says so",),
            ("Look for another process on that GPU, then at the batch size",),
        )
    if end.failure.exception is not None and _DISK_FULL.search(end.failure.message):
        phrase = f"found the disk full: {end.failure.message}{_at(end)}"
        return "disk_full", phrase, ("its log ends with that traceback",), ("Make room where it writes, or raise its quota",)
    if end.failure.exception is not None and _TORN_SAVE.search(end.failure.message) and (full := _full(snapshot)):
        phrase = f"found the disk full while it wrote a checkpoint: {end.failure.message}{_at(end)}"
        return "disk_full", phrase, ("its log ends with that traceback", full), ("Make room there, or raise its quota",)
    if end.failure.exception is not None:
        message = f": {end.failure.message}" if end.failure.message else ""
        phrase = f"raised {end.failure.exception}{message}{_at(end)}"
        return "user_exception", phrase, ("its log ends with that traceback",), ()
    last = end.last_line()
    said = f" (the last line of its log: {_shortly(last)})" if last else ""
    advice = f"Read the end of rank {end.rank}'s log"
    seen = "the traceback in its log has no last line" if end.failure.place else "its log holds no traceback"
    return "unknown", f"ended with exit code {end.status}{said}", (seen,), (advice,)


# Linux's numbers on x86 and ARM (signal(7)), from 1 on; nothing here asks a machine.
_SIGNAL_NAMES = (
    "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF "
    "WINCH IO PWR SYS"
)
_SIGNALS = dict(enumerate(_SIGNAL_NAMES.split(), start=1))
# By torch's words for the signal (strsignal).
_BY_LOADERS_SIGNAL = {
    "Killed": "sigkill",
    "Segmentation fault": "sigsegv",
    "Aborted": "sigabrt",
    "Bus error": "data_worker_killed_shm",
}
_LOADER_ADVICE = {
    "sigkill": "Look for the OOM killer, on the host and in the container, and for whoever kills processes here",
    "data_worker_killed_shm": "Give the job more shared memory (--shm-size, an emptyDir)",
}


def _loader_died(snapshot: Snapshot, loader: LoaderDeath) -> Cause:
    """The line of Python above it is where the news arrived, not the place of the fault."""
    named = "" if loader.pid is None else f" (process {loader.pid})"
    if not isinstance(snapshot.kills, Missing) and loader.pid in snapshot.kills.lines:
        advice = ("Give the job more host memory, fewer loader processes, or a smaller prefetch_factor",)
        return (
            "data_worker_killed_oom",
            "lost a loader process to the kernel, for want of memory",
            (snapshot.kills.lines[loader.pid],),
            advice,
        )
    how = "exited unexpectedly" if loader.signal is None else f"was killed by a signal: {loader.signal}"
    cause = _BY_LOADERS_SIGNAL.get(loader.signal or "", "unknown")
    advice = (_LOADER_ADVICE.get(cause, "Run with num_workers=0 and python -X faulthandler to see where"),)
    sender = (_unseen_sender(snapshot),) if cause == "sigkill" else ()
    return cause, f"lost a loader process, which {how}", (f"its log ends with torch's word on that{named}", *sender), advice


def may_be_a_full_disk(snapshot: Snapshot) -> bool:
    """True where a failed rank's log ends with what torch says when a write failed: the disk has to be asked then."""
    ends = (end_of(snapshot, sample) for sample in snapshot.ranks)
    failures = (end.failure for end in ends if end is not None and end.status)
    return any(failure.exception is not None and _TORN_SAVE.search(failure.message) for failure in failures)


def _full(snapshot: Snapshot) -> str | None:
    rooms = {} if isinstance(snapshot.room, Missing) else snapshot.room.available_bytes
    path = next((path for path, room in rooms.items() if room < _NO_ROOM_BYTES), None)
    return None if path is None else f"the file system under {path} has {rooms[path]} bytes left"


def _at(end: End) -> str:
    place = end.place()
    return f" in {place}" if place else ""


def _signalled(snapshot: Snapshot, end: End) -> Cause:
    number = -end.status
    pid = next(sample.pid for sample in snapshot.ranks if sample.rank == end.rank)
    if number == 9 and not isinstance(snapshot.kills, Missing) and pid in snapshot.kills.lines:
        return (
            "host_oom_kill",
            "was killed by the kernel for want of memory",
            (snapshot.kills.lines[pid],),
            ("Give the job more host memory",),
        )
    if number == 9:
        return "sigkill", "was killed (SIGKILL)", (_unseen_sender(snapshot),), ()
    fatal, last = end.fatal(), end.last_line()
    told = f": {_shortly(fatal.words)}" if fatal else ""
    quoted = (f"the last line of its log: {_shortly(last)}",) if last and not fatal else ()
    reasons = ("its exit status says so", *quoted)
    return _BY_SIGNAL.get(number, "unknown"), f"died of {_name(number)}{_at_fatal(end)}{told}", reasons, ()


def _unseen_sender(snapshot: Snapshot) -> str:
    seen = "its log may not be read" if isinstance(snapshot.kills, Missing) else "its log names no such kill"
    return f"who sent it is not seen; as to the kernel, {seen}"


def _at_fatal(end: End) -> str:
    fatal = end.fatal()
    return _at(end) if fatal and fatal.frames else ""


def _name(number: int) -> str:
    return f"SIG{_SIGNALS[number]}" if number in _SIGNALS else f"signal {number}"


def _shortly(words: str) -> str:
    return words if len(words) <= _LINE_MOST else f"{words[:_LINE_MOST]}…"
