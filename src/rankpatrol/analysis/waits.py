"""What one rank is at: its main thread's stack, and where that is silent, what the kernel says of it."""

import msgspec

from rankpatrol.analysis.frames import is_users, meaning, plain_name, say_frame, users_frame
from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.analysis.natives import native_meaning
from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import (
    Collective,
    FlightRecording,
    Frame,
    ProcessSample,
    RankSample,
    Stack,
    SystemCall,
    ThreadStack,
    is_pending,
)

# System calls that wait for storage or for a pipe, not for a peer.
_VERBS = {
    **dict.fromkeys(("read", "pread64", "readv", "preadv"), "reading"),
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev"), "writing"),
    **dict.fromkeys(("open", "openat", "openat2"), "opening"),
    **dict.fromkeys(("fsync", "fdatasync", "sync", "syncfs"), "syncing"),
    **dict.fromkeys(("stat", "lstat", "fstat", "newfstatat", "statx"), "looking up"),
    **dict.fromkeys(("rename", "renameat2", "unlink", "unlinkat", "mkdir", "getdents64"), "changing or listing"),
    **dict.fromkeys(("sendfile", "copy_file_range"), "copying"),
    "close": "closing",
    "flock": "locking",
}
IO_CALLS = frozenset(_VERBS)
# torch's DataLoader asks its queue every 5 s (MP_STATUS_CHECK_INTERVAL): poll(…, 1, 5000) is its mark without any stack.
_LOADER_POLL_MS = 5000
# In these a call of C++ waits for a peer as well as for anything else.
_OPAQUE = frozenset({"futex", "poll", "ppoll", "epoll_wait"})
FOR_PEERS = frozenset({WaitKind.COLLECTIVE, WaitKind.POINT_TO_POINT, WaitKind.DEVICE})


class Wait(Record, frozen=True, kw_only=True):
    """What a rank is at, in words, and on what that rests."""

    kind: WaitKind
    what: str
    by_stack: bool
    frame: Frame | None = None
    call: SystemCall | None = None
    sleeps: bool = False  # the kernel shows it asleep, and hides in which call
    opaque: bool = False  # the user's own code, or torch's, waits below a call that shows no frames: `work.wait()` or `store.get()`, say
    alone: bool = False  # none of its collectives is pending, so whatever it waits for is its own

    def for_peers(self) -> bool:
        """True where this rank waits for other ranks; without a stack a futex counts as such, since that can only clear a rank."""
        in_backward = self.kind is WaitKind.BACKWARD and self.blocked() and not self.alone
        return self.kind in FOR_PEERS or in_backward or self._presumed_victim()

    def unclear(self) -> bool:
        """True where too little is known to say that this rank does not wait for others."""
        return not self.by_stack and self.kind in {WaitKind.UNKNOWN, WaitKind.GONE, WaitKind.COMPUTE}

    def _presumed_victim(self) -> bool:
        return self.kind is WaitKind.LOCK and not self.by_stack

    def blocked(self) -> bool:
        """True where the kernel shows the main thread waiting in a system call; in `backward` of DDP that wait is for its peers."""
        return self.sleeps or (self.call is not None and self.call.name == "futex")


def main_thread(stack: Stack | Missing) -> ThreadStack | None:
    """The main thread's stack, or None where there is none to read."""
    return stack.main_thread() if isinstance(stack, Stack) else None


def blocking_call(process: ProcessSample | Missing) -> SystemCall | None:
    """The system call the main thread waits in; None while it runs, outside of any call, or where the kernel is silent."""
    if isinstance(process, Missing) or isinstance(process.system_call, Missing) or process.system_call.name in {"running", "outside"}:
        return None
    return process.system_call


def classify(sample: RankSample) -> Wait:
    """What this rank is at. States of the kernel go before stacks: a stopped process shows the stack it was stopped in."""
    process = sample.process
    if isinstance(process, Missing):
        return Wait(kind=WaitKind.GONE, what=process.reason, by_stack=False)
    if process.state == "T":
        return Wait(kind=WaitKind.STOPPED, what="is stopped (state T)", by_stack=False)
    if process.state == "t" or process.tracer_pid:
        return Wait(kind=WaitKind.TRACED, what=f"is held by a debugger (process {process.tracer_pid})", by_stack=False)
    thread = main_thread(sample.stack)
    call = blocking_call(process)
    if thread and thread.frames:
        return _by_stack(thread, process, call)
    return (_by_native(thread, call) if thread else None) or _by_kernel(process, call)


def _by_stack(thread: ThreadStack, process: ProcessSample, call: SystemCall | None) -> Wait:
    at = users_frame(thread)
    known = meaning(thread)
    if known is None and (native := _by_native(thread, call)) is not None:
        return msgspec.structs.replace(native, frame=at)
    if known is None:
        below = _by_kernel(process, call)
        where = f" in {say_frame(at)}" if at else ""
        opaque = call is not None and call.name in _OPAQUE and (is_users(thread.frames[0]) or "/torch/" in thread.frames[0].file)
        return Wait(kind=below.kind, what=below.what + where, by_stack=True, frame=at, call=call, opaque=opaque)
    kind, frame = known
    what = _PHRASES[kind].format(name=plain_name(frame))
    sleeps = process.state == "S" and isinstance(process.system_call, Missing)
    seen = Wait(kind=kind, what=what, by_stack=True, frame=at, call=call, sleeps=sleeps)
    if kind is WaitKind.BACKWARD:
        what = "waits for its peers in backward" if seen.blocked() else "computes gradients in backward"
        return msgspec.structs.replace(seen, what=what)
    return seen


def pending_of(recording: FlightRecording | Missing) -> Collective | None:
    """The latest operation that this rank has not left; None where there is none, or nothing is recorded."""
    entries = () if isinstance(recording, Missing) else recording.entries
    return next((entry for entry in reversed(entries) if is_pending(entry)), None)


def with_recording(wait: Wait, recording: FlightRecording | Missing) -> Wait:
    """What a rank's flight recorder adds, where it holds what its peers wait in: whether it is in a collective at all.

    Autograd's threads compute while the main thread waits for them, in the very futex in which DDP waits for its peers.
    """
    if isinstance(recording, Missing) or not recording.entries:
        return wait
    pending = pending_of(recording)
    if wait.kind is WaitKind.BACKWARD and pending is None:
        return msgspec.structs.replace(wait, alone=True, what="is in backward, where no collective of it is pending")
    if wait.opaque and wait.kind is WaitKind.LOCK and pending is not None:
        what = f"waits in {pending.operation}" + (f" at {say_frame(wait.frame)}" if wait.frame else "")
        kind = WaitKind.POINT_TO_POINT if pending.is_p2p else WaitKind.COLLECTIVE
        return msgspec.structs.replace(wait, kind=kind, what=what)
    return wait


def _by_native(thread: ThreadStack, call: SystemCall | None) -> Wait | None:
    """What the C functions of a stack mean, where its Python frames say nothing."""
    known = native_meaning(thread.native)
    if known is None:
        return None
    kind, name = known
    return Wait(kind=kind, what=_PHRASES[kind].format(name=name), by_stack=True, call=call)


_PHRASES = {
    WaitKind.COLLECTIVE: "waits in {name}",
    WaitKind.COMPUTE: "packs or unpacks an object ({name})",
    WaitKind.POINT_TO_POINT: "waits in {name}",
    WaitKind.BACKWARD: "is in backward",
    WaitKind.DATA: "waits for its data loader",
    WaitKind.LOADING: "loads a sample itself",
    WaitKind.CHECKPOINT: "is in {name} of a checkpoint",
    WaitKind.COMPILE: "compiles",
    WaitKind.START: "is starting ({name})",
    WaitKind.STORE: "waits in {name} (store)",
    WaitKind.DEVICE: "waits in {name} (GPU)",
    WaitKind.DOWNLOAD: "waits for a server ({name})",
    WaitKind.TEARDOWN: "waits in {name} (end of the program)",
    WaitKind.LOCK: "waits for a lock ({name})",
    WaitKind.TRACED: "waits for whoever debugs it ({name})",
}


def _by_kernel(process: ProcessSample, call: SystemCall | None) -> Wait:
    def wait(kind: WaitKind, what: str) -> Wait:
        return Wait(kind=kind, what=what, by_stack=False, call=call)

    if process.state == "D":
        return wait(WaitKind.IO, f"is in uninterruptible sleep (state D, {_channel(process)})")
    if call is None:
        return wait(WaitKind.COMPUTE, "computes") if process.state == "R" else wait(WaitKind.UNKNOWN, f"sleeps in {_channel(process)}")
    if call.name in IO_CALLS:
        return wait(WaitKind.IO, f"is blocked {say_call(call)}")
    if call.name in {"poll", "ppoll"} and call.arguments[1:3] == (1, _LOADER_POLL_MS):
        return wait(WaitKind.DATA, "waits for its data loader")
    kind, what = _OTHER_CALLS.get(call.name, (WaitKind.UNKNOWN, f"waits in {call.name}"))
    return wait(kind, what)


_OTHER_CALLS = {
    **dict.fromkeys(("nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait"), (WaitKind.SLEEP, "sleeps")),
    "futex": (WaitKind.LOCK, "waits for a lock or a peer (futex)"),
}


def _channel(process: ProcessSample) -> str:
    return "a place the kernel hides" if isinstance(process.wait_channel, Missing) else process.wait_channel


def say_call(call: SystemCall) -> str:
    """A blocked call as a sentence names it: `reading shard-0042.tar at 1048576`, `opening a file that is not known`."""
    verb = _VERBS.get(call.name, f"in {call.name} on")
    if call.path is None:
        return f"{verb} a file that is not known"
    name = call.path.rpartition("/")[2] or call.path
    at = f" at {call.offset_bytes}" if call.offset_bytes else ""
    return f"{verb} {name}{at}"
