"""A rank that waits for a loader process, and what that process is stuck in."""

from rankpatrol.analysis.causes.storage import in_kernel
from rankpatrol.analysis.frames import is_inside, plain_name, say_frame, users_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.waits import IO_CALLS, blocking_call, main_thread, say_call
from rankpatrol.analysis.work import Effort
from rankpatrol.core.records import Missing
from rankpatrol.core.snapshot import ProcessSample, ThreadStack

LOADER_NAME = "pt_data_worker"
_LOOP_FILE = "torch/utils/data/_utils/worker.py"


def explain(scene: Scene, rank: int) -> Cause | None:
    """Speaks where the rank waits for data; names the loader process that holds a sample and does not hand it over."""
    if scene.waits[rank].kind is not WaitKind.DATA:
        return None
    loaders = [child for child in scene.samples[rank].descendants if is_loader(scene, rank, child)]
    stuck = [loader for loader in loaders if _holds_a_sample(scene, rank, loader)]
    if not stuck:
        unknown = any(_stack(scene, rank, child) is None for child in scene.samples[rank].descendants)
        return _nobody_holds_it(rank, loaders, some_are_unknown=unknown)
    return _blame(scene, rank, min(stuck, key=_clarity), stuck)


def is_loader(scene: Scene, rank: int, child: ProcessSample) -> bool:
    """By the name that torch gives it, from 2.5 on; before, by its stack."""
    if LOADER_NAME in child.thread_names or child.name == LOADER_NAME:
        return True
    thread = _stack(scene, rank, child)
    return thread is not None and any(frame.file.endswith(_LOOP_FILE) and plain_name(frame) == "_worker_loop" for frame in thread.frames)


def _stack(scene: Scene, rank: int, loader: ProcessSample) -> ThreadStack | None:
    return main_thread(scene.samples[rank].child_stacks.get(loader.id.pid, Missing("not taken")))


def _holds_a_sample(scene: Scene, rank: int, loader: ProcessSample) -> bool:
    """Whatever its stack is in but the wait for an index or its own end; without one, running or in a file call by the kernel's word.

    A dataset may bring a fetcher of its own, and `worker_init_fn` runs before the first sample: torch's fetch need not be in the stack.
    """
    thread = _stack(scene, rank, loader)
    if loader.state in "TtD":
        return True
    if thread is not None and thread.frames:
        return is_inside(thread, WaitKind.LOADING) or not (waits_for_index(thread) or is_inside(thread, WaitKind.TEARDOWN))
    call = blocking_call(loader)
    return loader.state == "R" or (call is not None and call.name in IO_CALLS)


def waits_for_index(thread: ThreadStack) -> bool:
    """True for a loader process without work: its loop waits in `get` of its own queue, called by nothing else."""
    at = next((at for at, frame in enumerate(thread.frames) if plain_name(frame) == "_worker_loop"), None)
    called = thread.frames[at - 1] if at else None
    return called is not None and called.file.endswith("multiprocessing/queues.py") and plain_name(called) == "get"


def _clarity(loader: ProcessSample) -> tuple[int, int]:
    """The loader of which most is known first: stopped, then with a named file, then the oldest."""
    call = blocking_call(loader)
    order = 0 if loader.state in "Tt" else 1 if call is not None and call.path else 2
    return order, loader.id.start_ticks


def _blame(scene: Scene, rank: int, loader: ProcessSample, stuck: list[ProcessSample]) -> Cause:
    thread, call = _stack(scene, rank, loader), blocking_call(loader)
    seen = scene.effort_of(rank, loader.id.pid)
    what, lines = _what(loader, seen)
    reasons = [f"rank {rank} waits for its data loader, and loader process {loader.id.pid} {what}"]
    frame = users_frame(thread) if thread is not None else None
    if frame is not None:
        lines += 1
        reasons.append(f"its stack stands in {say_frame(frame)}, while the rank waits for its sample")
    others = [str(other.id.pid) for other in stuck if other is not loader]
    if others:
        reasons.append(f"loader process {', '.join(others)} of this rank is stuck as well")
    return Cause(
        cause="data_loader_worker_stuck",
        rank=rank,
        phrase=f"rank {rank} waits for loader process {loader.id.pid}, which {what}",
        lines=lines,
        reasons_for=tuple(reasons),
        suggested=_suggest(loader, call.path if call else None),
        not_to_be_ended=in_kernel(loader, f"loader process {loader.id.pid}"),
        process=loader,
        file=call.path if call else None,
        file_offset_bytes=call.offset_bytes if call else None,
        quiet_since_mono_s=seen.since_mono_s if seen.spins else None,
    )


def _what(loader: ProcessSample, seen: Effort) -> tuple[str, int]:
    """What the loader is at, and how many lines of evidence the kernel gives for it."""
    call = blocking_call(loader)
    if loader.state in "Tt":
        return "is stopped (state T)", 1
    if call is not None and call.name in IO_CALLS:
        return f"is blocked {say_call(call)}", 1
    if seen.spins:
        return "is busy in the same few lines and gets nothing done", 1
    if seen.busy:
        return "computes for a long time on one sample", 0
    if call is not None:
        return f"waits in {call.name}", 1
    return (f"is in state {loader.state}", 0) if loader.state not in "S?" else ("does not hand over its sample", 0)


def _suggest(loader: ProcessSample, path: str | None) -> tuple[str, ...]:
    if loader.state in "Tt":
        return (f"Let it go on if it was stopped on purpose: kill -CONT {loader.id.pid}",)
    if path is not None:
        return (
            f"Check that {path} can be read: its storage, its mount, or the writer of the pipe",
            "Give the DataLoader a timeout=, so that torch raises where this happens again",
        )
    return ("Give the DataLoader a timeout=, so that torch raises where this happens again",)


def _nobody_holds_it(rank: int, loaders: list[ProcessSample], *, some_are_unknown: bool) -> Cause:
    none = "none of the processes below it is known as a loader" if some_are_unknown else "no loader process of it is alive"
    seen = f"none of its {len(loaders)} loader processes holds a sample" if loaders else none
    return Cause(
        cause="data_loader_worker_stuck",
        rank=rank,
        phrase=f"rank {rank} waits for its data loader, and {seen}",
        lines=1,
        reasons_for=(seen,),
        reasons_against=("which loader process should have answered is not shown by what was captured",),
    )
