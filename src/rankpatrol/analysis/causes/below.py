"""A rank that does not come back from C: it keeps its interpreter's lock there, or waits for a lock that Python does not know."""

from collections.abc import Callable

from rankpatrol.analysis.frames import say_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.waits import Wait, blocking_call, classify, main_thread
from rankpatrol.core.snapshot import ProcessSample, RankSample, SystemCall

# futex(2): the command without its flags; a mutex of the C library that somebody waits for has the value 2 (lowlevellock.h of glibc).
# Python's own locks are semaphores, and conditions wait by a bit set: both are other commands.
_COMMAND, _WAIT, _CONTENDED = 0x7F, 0, 2
# Where Python's own frames tell what a rank is at, that goes first.
_SAYS_NOTHING = frozenset({WaitKind.LOCK, WaitKind.SLEEP, WaitKind.UNKNOWN})


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where every look showed the same: a lock kept by whoever sleeps or spins in C, or a mutex that is never given."""
    return _keeps_the_lock(scene, rank) or _waits_for_a_mutex(scene, rank)


def _keeps_the_lock(scene: Scene, rank: int) -> Cause | None:
    seen, wait = scene.effort_of(rank), scene.waits[rank]
    looks = f"{len(scene.history)} looks"
    if seen.spins and scene.samples[rank].gives_lock is False:
        what = "burns a core in C code"
        reasons = [
            f"{looks} show the same Python line, and it reads, writes and allocates nothing",
            "a thread of it that asked for the interpreter's lock has not got it: Python code would have given it up within 5 ms",
        ]
    elif _in_all_looks(scene, rank, _sleeps_with_the_lock):
        what = f"waits in C code ({_call_name(wait)})"
        reasons = [
            f"{looks} show it in the same {_call_name(wait)} with the interpreter's lock, which Python itself gives up before it waits"
        ]
    else:
        return None
    return Cause(
        cause="gil_held",
        rank=rank,
        phrase=f"rank {rank} {what} and keeps the interpreter's lock{_called_from(wait)}",
        lines=2,
        reasons_for=tuple(reasons),
        reasons_against=(f"rank {rank} uses the CPU",) if seen.spins else (),
        suggested=_suggested(wait),
        process=scene.process_of(rank),
        quiet_since_mono_s=seen.since_mono_s if seen.spins else None,
    )


def _waits_for_a_mutex(scene: Scene, rank: int) -> Cause | None:
    wait = scene.waits[rank]
    if not _in_all_looks(scene, rank, _waits_in_a_mutex):
        return None
    return Cause(
        cause="below_python",
        rank=rank,
        phrase=f"rank {rank} waits for a mutex of the C library, below Python{_called_from(wait)}",
        lines=int(wait.by_stack) + 1,
        reasons_for=(f"{len(scene.history)} looks show the same futex call, and its value is a contended mutex's: no lock of Python's",),
        reasons_against=("which thread holds that mutex is not seen from outside",),
        suggested=_suggested(wait),
        process=scene.process_of(rank),
    )


def _in_all_looks(scene: Scene, rank: int, shows: Callable[[RankSample], bool]) -> bool:
    """Two looks at least, in the same call with the same arguments each time."""
    seen = [sample for look in scene.history for sample in look.ranks if sample.rank == rank]
    calls = {(each.pid, _call(each)) for each in seen}
    return len(seen) > 1 and len(calls) == 1 and all(shows(each) for each in seen)


def _call(sample: RankSample) -> SystemCall | None:
    return blocking_call(sample.process)


def _sleeps_with_the_lock(sample: RankSample) -> bool:
    """Python gives its lock up before any call of its own that may block."""
    thread = main_thread(sample.stack)
    sleeps = isinstance(sample.process, ProcessSample) and sample.process.state == "S" and _call(sample) is not None
    return sleeps and thread is not None and thread.owns_gil and classify(sample).kind in _SAYS_NOTHING


def _waits_in_a_mutex(sample: RankSample) -> bool:
    call = _call(sample)
    if call is None or call.name != "futex" or len(call.arguments) < 3 or classify(sample).kind is not WaitKind.LOCK:
        return False
    return call.arguments[1] & _COMMAND == _WAIT and call.arguments[2] & 0xFFFFFFFF == _CONTENDED


def _call_name(wait: Wait) -> str:
    return wait.call.name if wait.call is not None else "a call"


def _called_from(wait: Wait) -> str:
    return f", called from {say_frame(wait.frame)}" if wait.frame is not None else ""


def _suggested(wait: Wait) -> tuple[str, ...]:
    """The native stack is in the bundle of a judged rank."""
    look = "The bundle's native.txt of this rank shows the C functions"
    return (f"Look at what {wait.frame.file}:{wait.frame.line} calls", look) if wait.frame is not None else (look,)
