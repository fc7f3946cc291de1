"""Who ended first, and of what; everybody else's end is its echo."""

import re
from collections import Counter

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Scene, say_ranks
from rankpatrol.core.diagnosis import Certainty, Diagnosis
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import Collective, LogSample, Marks, RankSample, Snapshot
from rankpatrol.formats.failures import SIZES_DISAGREE, Failure, last_failure

_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"
}  # fmt: skip
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
_NUMBER = re.compile(r"\d+")
_GPU_MEMORY = re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation")


class End(Record, frozen=True, kw_only=True):
    """One rank's end: when, how, and what its log says of it."""

    rank: int
    status: int
    goes_down: bool
    at_unix_s: float
    failure: Failure
    tail: tuple[str, ...]

    def first_cause(self) -> bool:
        """False where its log only echoes another rank's end."""
        return self.status < 0 or not self.failure.echo

    def is_like(self, other: "End") -> bool:
        """True where both failed of the same: an exception in the same line, or an exit code with the same last words.

        Signals are left out: an abort is what a library does to victims too.
        """
        if self.status != other.status or self.status < 0:
            return False
        if self.failure.exception is None:
            return other.failure.exception is None and _NUMBER.sub("", self.last_line()) == _NUMBER.sub("", other.last_line())
        return (self.failure.exception, self.failure.place) == (other.failure.exception, other.failure.place)

    def last_line(self) -> str:
        """The last words of its log."""
        return next((line.strip() for line in reversed(self.tail) if line.strip()), "")


def diagnose_crash(snapshot: Snapshot) -> Diagnosis | None:
    """The first failing rank and its cause, or None while no rank has ended in a way that ends the job.

    First is by the shims' times, but a rank whose log only echoes another's end never is: with gloo a victim may well exit before its
    peers' sockets are even closed. A rank whose probe says that its program has ended with an exception has failed, though its
    interpreter goes down for seconds yet, in which its victims may be gone already. A rank that left with exit code 0 while others wait
    for it is the first cause of theirs.
    """
    ends = sorted((end for sample in snapshot.ranks if (end := _end(snapshot, sample)) is not None), key=lambda end: end.at_unix_s)
    failed = [end for end in ends if end.status != 0]
    if not failed:
        return _left_early(snapshot, ends)
    own = [end for end in failed if end.first_cause()]
    # Whoever was told to end was told so by somebody: its launcher does that to all once one has failed.
    told_to_end = [end for end in own if end.status == _SIGTERM]
    by_themselves = [end for end in own if end.status != _SIGTERM]
    if not by_themselves and (vanished := _vanished(snapshot)):
        return _vanishing(vanished, failed)
    if not own:
        return _left_early(snapshot, ends) or _echoes_only(failed)
    return _crashed(snapshot, (by_themselves or told_to_end)[0], failed, by_themselves)


_SIGTERM = -15
# A traceback is in its rank's pipe before the mark, and in its log 0.1 to 0.2 s after it; on a starved machine later.
_ON_ITS_WAY_S = 1.0
_RAISED = 1  # what Python makes of an exception that nobody handles


def _vanished(snapshot: Snapshot) -> tuple[int, ...]:
    """Ranks that are gone without a word of their shim: it was killed with them, since it tells every other end."""
    waits = Scene((snapshot,)).waits
    return tuple(sample.rank for sample in snapshot.ranks if sample.exit_status is None and waits[sample.rank].kind is WaitKind.GONE)


def _vanishing(gone: tuple[int, ...], failed: list[End]) -> Diagnosis:
    others = tuple(end.rank for end in failed)
    return Diagnosis(
        verdict="crash",
        cause="sigkill",
        culprit_ranks=gone,
        victim_ranks=others,
        certainty=Certainty.SUPPORTED,
        sentence=f"{say_ranks(gone)} vanished without a word, and {say_ranks(others)} ended of it",
        reasons_for=(
            f"no shim is left to say how {say_ranks(gone)} ended: only SIGKILL, to the shim as well, leaves none",
            f"{say_ranks(others)} only echoed it, or were told to end",
        ),
        reasons_against=("who killed it is not seen",),
        suggested=("Look for the OOM killer in the kernel log, and for whoever kills process groups on this node",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )


def _end(snapshot: Snapshot, sample: RankSample) -> End | None:
    raised_at_s = sample.marks.raised_at_mono_s if isinstance(sample.marks, Marks) else None
    tail = sample.log.tail if isinstance(sample.log, LogSample) else ()
    failure = last_failure(tail)
    if failure.exception is None or (raised_at_s is not None and snapshot.at_mono_s - raised_at_s < _ON_ITS_WAY_S):
        raised_at_s = None  # what it raised is not known yet, and may be another's echo
    if sample.exit_status is None and raised_at_s is None:
        return None
    ended_unix_s = sample.ended_unix_s or 0.0
    if raised_at_s is not None:
        raised_unix_s = snapshot.at_unix_s - (snapshot.at_mono_s - raised_at_s)
        ended_unix_s = min(ended_unix_s or raised_unix_s, raised_unix_s)
    return End(
        rank=sample.rank,
        # Whatever ends it on its way down (its launcher, a library of its own) has not begun it.
        status=_RAISED if raised_at_s is not None and sample.exit_status != 0 else sample.exit_status or 0,
        goes_down=sample.exit_status is None,
        at_unix_s=ended_unix_s,
        failure=failure,
        tail=tail,
    )


def _crashed(snapshot: Snapshot, first: End, failed: list[End], own: list[End]) -> Diagnosis:
    """Where others failed just as the first one did, each by itself, they are culprits too; where all did, nobody is the odd one out."""
    if first.status == _SIGABRT and any(SIZES_DISAGREE.search(line) for line in first.tail):
        return _sizes_disagree(snapshot, first)
    cause, phrase, reasons, suggested = _cause(snapshot, first)
    alike = tuple(sorted(end.rank for end in own if end is first or end.is_like(first)))
    also = tuple(sorted(end.rank for end in own if end.rank not in alike and end.status > 0))
    others = tuple(end.rank for end in failed if end.rank not in alike)
    alive = tuple(sample.rank for sample in snapshot.ranks if sample.exit_status is None and sample.rank not in {*alike, *others})
    all_of_them = 1 < len(alike) == max(snapshot.world_size, len(snapshot.ranks))
    return Diagnosis(
        verdict="crash",
        cause=cause,
        culprit_ranks=None if all_of_them else alike,
        victim_ranks=tuple(sorted((*others, *alive))),
        certainty=Certainty.SUPPORTED if first.goes_down else Certainty.PROVED,
        sentence=f"{say_ranks(alike)} {phrase}{_of_the_others(alike, also, tuple(rank for rank in others if rank not in also))}",
        reasons_for=(
            *reasons,
            *(("its interpreter has not gone down yet",) if first.goes_down else ()),
            *(f"rank {end.rank} ended {end.at_unix_s - first.at_unix_s:+.2f} s from it" for end in failed if end != first),
        ),
        suggested=suggested,
        not_to_be_ended=ENDS_BY_ITSELF,
        place=first.failure.place,
        failure=phrase,
    )


def _of_the_others(alike: tuple[int, ...], also: tuple[int, ...], echoes: tuple[int, ...]) -> str:
    """Only who echoes another's end, or was told to end, is said to have ended of it."""
    each = ", each by itself" if len(alike) > 1 else ""
    as_well = f"; {say_ranks(also)} failed otherwise" if also else ""
    return each + as_well + (f"; {say_ranks(echoes)} ended of it" if echoes else "")


_SIGABRT = -6


def _sizes_disagree(snapshot: Snapshot, first: End) -> Diagnosis:
    """Gloo aborts whoever gets more than it expects: that is the odd rank, or a healthy neighbour of it. The others' recordings tell."""
    sizes = {sample.rank: pending.input_sizes for sample in snapshot.ranks if (pending := _pending(sample)) is not None}
    common = Counter(sizes.values()).most_common(1)
    odd = tuple(rank for rank, size in sizes.items() if size != common[0][0]) if common else ()
    agree = len(sizes) - len(odd)
    named = (first.rank,) if not odd and agree > 1 else odd if len(odd) == 1 and agree > 1 else None
    others = tuple(sample.rank for sample in snapshot.ranks if sample.rank not in (named or ()))
    who = say_ranks(named) if named else "a rank"
    return Diagnosis(
        verdict="crash",
        cause="collective_mismatch_shape",
        culprit_ranks=named,
        victim_ranks=others,
        certainty=Certainty.PROVED if named else Certainty.SUPPORTED,
        sentence=f"{who} brought another size to a collective than the others; rank {first.rank} was aborted by gloo for it",
        reasons_for=(
            f"rank {first.rank} was sent a message of another size than it expected (gloo, SIGABRT)",
            *((f"{agree} ranks stand in a collective of one size, {common[0][0]}",) if agree > 1 else ()),
        ),
        suggested=("Look for a tensor whose size depends on the rank or on its data: a last batch, a variable length",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )


# torchrun ends the others and starts the next attempt within a second of the first failure.
ENDS_BY_ITSELF = "the launcher sees the exit, and ends and restarts the job itself"
Cause = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def _cause(snapshot: Snapshot, end: End) -> Cause:
    """Cause, phrase, reasons and advice for the first failing rank."""
    said = "\n".join(end.tail[-80:])
    if _SHARED_MEMORY.search(said):
        return "shm_too_small", "found /dev/shm full", ("its log says so",), ("Give the job more shared memory (--shm-size, an emptyDir)",)
    if end.status < 0:
        return _signalled(snapshot, end)
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
    shown = last if len(last) <= _LINE_MOST else f"{last[:_LINE_MOST]}…"
    said = f" (the last line of its log: {shown})" if shown else ""
    advice = f"Read the end of rank {end.rank}'s log"
    return "unknown", f"ended with exit code {end.status}{said}", ("its log holds no traceback",), (advice,)


def may_be_a_full_disk(snapshot: Snapshot) -> bool:
    """True where a failed rank's log ends with what torch says when a write failed: the disk has to be asked then."""
    ends = (_end(snapshot, sample) for sample in snapshot.ranks)
    failures = (end.failure for end in ends if end is not None and end.status)
    return any(failure.exception is not None and _TORN_SAVE.search(failure.message) for failure in failures)


def _full(snapshot: Snapshot) -> str | None:
    rooms = {} if isinstance(snapshot.room, Missing) else snapshot.room.available_bytes
    path = next((path for path, room in rooms.items() if room < _NO_ROOM_BYTES), None)
    return None if path is None else f"the file system under {path} has {rooms[path]} bytes left"


def _at(end: End) -> str:
    return f" in {end.failure.place}" if end.failure.place else ""


def _signalled(snapshot: Snapshot, end: End) -> Cause:
    number = -end.status
    name = _SIGNALS.get(number, f"signal {number}")
    pid = next(sample.pid for sample in snapshot.ranks if sample.rank == end.rank)
    if number == 9 and not isinstance(snapshot.kills, Missing) and pid in snapshot.kills.lines:
        return (
            "host_oom_kill",
            "was killed by the kernel for want of memory",
            (snapshot.kills.lines[pid],),
            ("Give the job more host memory",),
        )
    if number == 9:
        seen = "its log may not be read" if isinstance(snapshot.kills, Missing) else "its log names no such kill"
        return "sigkill", "was killed (SIGKILL)", (f"who sent it is not seen; as to the kernel, {seen}",), ()
    return _BY_SIGNAL.get(number, "unknown"), f"died of {name}", ("its exit status says so",), ()


def _left_early(snapshot: Snapshot, ends: list[End]) -> Diagnosis | None:
    """A rank that ended with 0 while others wait for a peer: with all of the rest alive or echoing, it is what they wait for."""
    gone = [end for end in ends if end.status == 0]
    if not gone or len(gone) == len(snapshot.ranks):
        return None
    scene = Scene((snapshot,))
    waiting = tuple(rank for rank in scene.victims if scene.waits[rank].by_stack)
    echoing = tuple(end.rank for end in ends if end.status != 0 and not end.first_cause())
    # A rank that still works towards its own end (a last save) is nobody's victim: then nothing is wrong yet.
    busy = [rank for rank in scene.awaited if scene.waits[rank].kind not in {WaitKind.GONE, WaitKind.UNKNOWN}]
    if not waiting and not echoing:
        return None
    if busy and not echoing:
        return None
    left = tuple(end.rank for end in gone)
    names = say_ranks(left)
    return Diagnosis(
        verdict="crash",
        cause="left_early",
        culprit_ranks=left,
        victim_ranks=tuple(sorted((*waiting, *echoing))),
        certainty=Certainty.PROVED if _is_proved(snapshot, left, waiting, echoing) else Certainty.SUPPORTED,
        sentence=f"{names} left with exit code 0 while {say_ranks((*waiting, *echoing))} still needed {'it' if len(left) == 1 else 'them'}",
        reasons_for=tuple(
            f"{say_ranks(ranks)} {what}"
            for ranks, what in ((waiting, "wait for a peer"), (echoing, "ended of a closed connection"))
            if ranks
        ),
        suggested=("Look for an early return or sys.exit in the training loop of that rank",),
        not_to_be_ended=ENDS_BY_ITSELF if echoing else None,
    )


def _is_proved(snapshot: Snapshot, left: tuple[int, ...], waiting: tuple[int, ...], echoing: tuple[int, ...]) -> bool:
    """A live rank waits in a group that holds the departed one, or its peers' connections broke while nobody else had ended."""
    if len(left) == 1 and echoing:
        return True
    return any(set(left) & set(_pending_members(sample)) for sample in snapshot.ranks if sample.rank in waiting)


def _pending_members(sample: RankSample) -> tuple[int, ...]:
    """The global ranks of the group in which this rank's last unfinished collective stands; none where that is not recorded."""
    pending = _pending(sample)
    if pending is None or isinstance(sample.marks, Missing):
        return ()
    return {group.name: group.ranks for group in sample.marks.groups}.get(pending.group, ())


def _pending(sample: RankSample) -> Collective | None:
    """The collective in which a rank stands, by its recording."""
    entries = () if isinstance(sample.recording, Missing) else sample.recording.entries
    return next((entry for entry in reversed(entries) if not entry.retired and not entry.is_p2p), None)


def _echoes_only(failed: list[End]) -> Diagnosis:
    timed_out = tuple(end.rank for end in failed if end.failure.timed_out)
    return Diagnosis(
        verdict="crash",
        cause="unknown",
        victim_ranks=tuple(end.rank for end in failed),
        sentence=f"{say_ranks(tuple(end.rank for end in failed))} ended of another rank's end, which is not seen here",
        reasons_for=(f"the process group's own time-out ended {say_ranks(timed_out)}" if timed_out else "their logs only echo it",),
        not_to_be_ended=ENDS_BY_ITSELF,
    )
