"""The registry of causes for what people paste: the live one, and what a single look of a stack can say beyond it."""

import re

import msgspec

from rankpatrol.analysis.causes import Registry, loader, stopped, storage, working
from rankpatrol.analysis.causes.blocked import explain as explain_blocked
from rankpatrol.analysis.frames import is_users, meaning, plain_name, say_frame, users_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.natives import extension_function, native_meaning, waits_for_gil
from rankpatrol.analysis.phases import phase_cause
from rankpatrol.analysis.scene import Cause, Scene
from rankpatrol.analysis.told.scene import ToldScene, children
from rankpatrol.core.snapshot import ProcessSample, Stack, ThreadStack

_LOCKS = re.compile(r"(/|^)(threading|queue|multiprocessing/(synchronize|queues|connection))\.py$|filelock/|portalocker|fasteners")
_LOCK_NAMES = frozenset({"acquire", "wait", "__enter__", "_wait_for_tstate_lock", "lock", "join", "_acquireLock", "acquire_lock"})
_INDEX_QUEUES = frozenset({"get", "poll", "_poll", "select", "recv", "recv_bytes", "_recv_bytes", "_recv"})
_SENDS = re.compile(r"post|send|log|report|upload|push|reward", re.IGNORECASE)
_TELEMETRY = ("wandb/", "mlflow/", "comet_ml/", "neptune/", "tensorboard", "sentry_sdk/")


def _scene(scene: Scene) -> ToldScene:
    if not isinstance(scene, ToldScene):
        raise TypeError("these causes speak of pasted stacks")
    return scene


def fork_lock(scene: Scene, rank: int) -> Cause | None:
    """A loader process that stands on a lock in the middle of a sample: after a fork nobody is left to release it."""
    for child, thread in children(_scene(scene), rank):
        if thread is not None and (lock := _inherited_lock(thread) or _pool_without_threads(child, thread)) is not None:
            alone = "a forked process has none of the threads that held its locks"
            return Cause(
                cause="data_loader_fork_lock",
                rank=rank,
                phrase=f"rank {rank} waits for loader process {child.id.pid}, which waits for a lock in {lock}",
                lines=2,
                reasons_for=(f"loader process {child.id.pid} of rank {rank} stands in {lock}", alone),
                suggested=(
                    "Start loader processes with multiprocessing_context='spawn' or 'forkserver'",
                    "Or keep thread pools out of them: OMP_NUM_THREADS=1, cv2.setNumThreads(0), TOKENIZERS_PARALLELISM=false",
                ),
                process=child,
            )
    return None


def _inherited_lock(thread: ThreadStack) -> str | None:
    """Where a loader process waits for a lock: in C below a library's call, or in Python outside of its own queues."""
    known = native_meaning(thread.native)
    if known is not None and known[0] is WaitKind.LOCK:
        return known[1]
    leaf = thread.frames[0] if thread.frames else None
    if leaf is None or plain_name(leaf) not in _LOCK_NAMES:
        return None
    above = thread.frames[1:4]
    if any("multiprocessing/queues.py" in frame.file or plain_name(frame) == "_worker_loop" for frame in (leaf, *above)):
        return None
    return say_frame(next((frame for frame in above if not _LOCKS.search(frame.file)), leaf))


# Libraries that keep a pool of threads of their own: a forked process has the pool's bookkeeping and none of its threads.
_POOLS = re.compile(
    r"transformers/tokenization_utils_fast|/tokenizers/|/numexpr/|/scipy/|/sklearn/|/cv2/|/torchaudio/|/torchvision/|/numba/"
)


def _pool_without_threads(process: ProcessSample, thread: ThreadStack) -> str | None:
    """Where a loader process sleeps in a call of a library with a pool: a pool that worked would keep it busy, or have threads."""
    leaf = thread.frames[0] if thread.frames else None
    if leaf is None or process.state != "S" or is_users(leaf) or "/lib/python3" in leaf.file:
        return None
    return say_frame(leaf) if _POOLS.search(leaf.file) or len(process.thread_names) == 1 else None


def gil(scene: Scene, rank: int) -> Cause | None:
    """A thread that keeps the interpreter's lock within a C function, while others of the same process ask for it."""
    stack = scene.samples[rank].stack
    if not isinstance(stack, Stack):
        return None
    asking = [thread for thread in stack.threads if waits_for_gil(thread.native)]
    holder = next(
        (thread for thread in stack.threads if thread not in asking and (thread.owns_gil or extension_function(thread.native) is not None)),
        None,
    )
    if not asking or holder is None:
        return None
    at = users_frame(holder)
    function = extension_function(holder.native)
    where = f" in {say_frame(at)}" if at else f" in {function}" if function else ""
    return Cause(
        cause="gil_held",
        rank=rank,
        phrase=f"rank {rank} keeps the interpreter's lock{where}",
        lines=2,
        reasons_for=(f"{len(asking)} of its threads ask for the lock (take_gil), one keeps it{where}",),
        suggested=("Look for a C extension that does not release the lock around a long call",),
        process=scene.process_of(rank),
    )


def download(scene: Scene, rank: int) -> Cause | None:
    """A rank, or a loader process of it, that waits for a server outside of the job."""
    here = _scene(scene)
    if here.waits[rank].kind is WaitKind.DOWNLOAD and (own := here.thread(rank)) is not None:
        return _download(rank, own, f"rank {rank}", here.process_of(rank))
    if here.waits[rank].kind is not WaitKind.DATA:
        return None
    for child, thread in children(here, rank):
        known = meaning(thread) if thread is not None else None
        if thread is not None and known is not None and known[0] is WaitKind.DOWNLOAD:
            return _download(rank, thread, f"loader process {child.id.pid} of rank {rank}", child)
    return None


def _download(rank: int, thread: ThreadStack, who: str, process: ProcessSample | None) -> Cause | None:
    calls = [plain_name(frame) for frame in thread.frames]
    if any(part in frame.file for frame in thread.frames for part in _TELEMETRY) or any(_SENDS.search(name) for name in calls[:8]):
        return None
    known = meaning(thread)
    where = say_frame(known[1]) if known else calls[0]
    return Cause(
        cause="download_stall",
        rank=rank,
        phrase=f"{who} waits for a server in {where}",
        lines=1,
        reasons_for=(f"the stack of {who} stands in a download: {where}",),
        suggested=("Fetch the data before the job starts, or give the download a time limit and retries",),
        process=process,
    )


def told_loader(scene: Scene, rank: int) -> Cause | None:
    """A rank that waits for its loader; where no loader process is shown, that much and no more is said."""
    if scene.waits[rank].kind is not WaitKind.DATA or scene.samples[rank].descendants:
        found = loader.explain(scene, rank)
        # Loader processes that wait for work, without the rank that should give it, say nothing.
        return None if found is not None and found.process is None and scene.process_of(rank) is None else found
    return Cause(
        cause="data_loader_worker_stuck",
        rank=rank,
        phrase=f"rank {rank} waits for its data loader",
        lines=1,
        reasons_for=(f"the main thread of rank {rank} waits for a batch, not for another rank",),
        reasons_against=("its loader processes are not shown: which of them is stuck, and in what, is not known",),
        suggested=("Take the stacks of its children as well: py-spy dump --subprocesses --pid PID",),
        process=scene.process_of(rank),
    )


def phase(scene: Scene, rank: int) -> Cause | None:
    """A rank in a phase that takes long by nature, and in no lock: a single look cannot show that it gets on, nor that it does not."""
    here = _scene(scene)
    wait, thread = here.waits[rank], here.thread(rank)
    if thread is None or not thread.frames or here.shows_no_change() or wait.kind in _STUCK:
        return None
    named = phase_cause(thread)
    saves = here.is_inside(rank, WaitKind.CHECKPOINT) and named != "model_load"
    cause = _KINDS.get(wait.kind) or ("checkpoint_io_slow" if saves else named)
    if cause is None or _on_a_lock(thread):
        return None
    at = users_frame(thread) or thread.frames[0]
    what = f"{plain_name(at)}, {at.file.rpartition('/')[2]}:{at.line}"
    return Cause(
        verdict="benign_wait",
        cause=cause,
        rank=rank,
        phrase=f"rank {rank} {_SAID[cause]} ({what})",
        lines=1,
        reasons_for=(f"its stack shows that it {_SAID[cause]}, which may take long",),
        reasons_against=("one look does not show whether it gets on",),
        suggested=("Take a second look a minute later, and compare the time with the collectives' time limit",),
        process=here.process_of(rank),
    )


_KINDS = {WaitKind.COMPILE: "compile_or_jit"}
_STUCK = frozenset({WaitKind.LOCK, WaitKind.DOWNLOAD, WaitKind.DATA, WaitKind.STOPPED, WaitKind.GONE})
_SAID = {
    "checkpoint_io_slow": "writes or reads a checkpoint",
    "compile_or_jit": "compiles",
    "rank0_eval": "evaluates",
    "rank0_preprocessing": "prepares data",
    "model_load": "loads a model",
}


def _on_a_lock(thread: ThreadStack) -> bool:
    """True where the innermost frames are a lock or a queue, and no pool of workers is waited for."""
    leaf = thread.frames[0]
    if not (_LOCKS.search(leaf.file) and plain_name(leaf) in _LOCK_NAMES | _INDEX_QUEUES):
        return False
    return not any(
        "pool.py" in frame.file or "concurrent/futures" in frame.file or "subprocess.py" in frame.file for frame in thread.frames[:6]
    )


def blocked(scene: Scene, rank: int) -> Cause | None:
    """What is left: where it stands is known, why is not. One look does not show that it stands still."""
    here = _scene(scene)
    cause = explain_blocked(here, rank)
    if cause is None:
        return None
    still = here.stands_still()
    if _may_compute(here, rank) and not _is_alone_outside(here, rank):
        phrase = f"rank {rank} {here.waits[rank].what}, waiting or computing"
        cause = Cause(verdict="undetermined", cause="unknown", rank=rank, phrase=phrase, lines=0)
    if cause.verdict != "hang" and still is not None:
        cause = msgspec.structs.replace(cause, verdict="hang", lines=1, reasons_for=(f"the text says that nothing moves: {still}",))
    if cause.verdict != "hang":
        return cause
    reasons = (f"rank {rank} {here.waits[rank].what}", *cause.reasons_for[1:])
    p2p = [each for each in here.victims if here.waits[each].kind is WaitKind.POINT_TO_POINT]
    if len(p2p) * 2 > len(here.victims):
        return msgspec.structs.replace(cause, cause="p2p_mismatch", lines=1, reasons_for=(*reasons, _chain(rank)))
    if here.waits[rank].kind is WaitKind.TEARDOWN:
        return msgspec.structs.replace(cause, cause="teardown_deadlock")
    doubts = ("the tool does not say whether it runs: it may compute",) if still is None and _may_compute(here, rank) else ()
    return msgspec.structs.replace(cause, cause="unknown", lines=1, reasons_for=reasons, reasons_against=doubts)


_WAITING_NAMES = re.compile(
    r"^_*(sleep|wait\w*|acquire\w*|join|poll|select|recv\w*|read\w*|get|accept|connect|f?lock\w*|communicate|result|open|stat|fsync|barrier|request)$"
)


def _may_compute(scene: ToldScene, rank: int) -> bool:
    """True where a tool does not say whether a thread runs, and the innermost frame is none that waits: it may as well compute."""
    process, thread, wait = scene.process_of(rank), scene.thread(rank), scene.waits[rank]
    if process is None or process.state != "?" or wait.kind is not WaitKind.UNKNOWN or wait.call is not None:
        return False
    if thread is None or not thread.frames:
        return False
    return _WAITING_NAMES.match(plain_name(thread.frames[0])) is None


def _is_alone_outside(scene: ToldScene, rank: int) -> bool:
    """True where all others meet in a collective and this rank stands in a line of the user's own, in no part of a model's step.

    Whoever computes a forward pass or an update is seen in torch, or below its call of a module, at almost any moment.
    """
    thread = scene.thread(rank)
    others = [wait.kind for each, wait in scene.waits.items() if each != rank]
    if thread is None or len(others) < _FEWEST_PEERS or any(kind not in _MEETINGS for kind in others):
        return False
    return is_users(thread.frames[0]) and not any(
        _STEPS.search(frame.file) or _STEP_NAMES.match(plain_name(frame)) for frame in thread.frames[:_NEAR]
    )


_FEWEST_PEERS = 2
_NEAR = 8
_MEETINGS = frozenset({WaitKind.COLLECTIVE, WaitKind.POINT_TO_POINT, WaitKind.DEVICE, WaitKind.BACKWARD})
_STEPS = re.compile(r"/torch/(nn|optim|_dynamo|_inductor|amp|autograd)/")
_STEP_NAMES = re.compile(r"^_*(?:forward|backward|\w*loss|\w*step_fn|compute_\w+|optimizer_step|step|generate|sample|rollout)$")


def _chain(rank: int) -> str:
    return f"the others send or receive, one waiting for the next; the chain ends at rank {rank}, which is in no transfer"


TOLD_REGISTRY: Registry = (
    stopped.explain,
    working.explain,
    gil,
    fork_lock,
    download,
    told_loader,
    storage.explain,
    phase,
    blocked,
)
