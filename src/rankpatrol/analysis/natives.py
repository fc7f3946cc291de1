"""Which C functions mean which kind of waiting: the table for native stacks (gdb, pystack, py-spy --native)."""

import re

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.core.snapshot import SystemCall

# In order: of two functions in one stack the row that stands first speaks. A collective waits on the device, an exit aborts collectives.
_ROWS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"ncclComm(Abort|Destroy|Finalize)|\bcommFree|commReclaim|ProcessGroupNCCL::(abort|shutdown|~)", WaitKind.TEARDOWN),
        (r"__run_exit_handlers|Py_FinalizeEx|Py_Finalize$|exit_handlers|_dl_fini|wait_for_thread_shutdown", WaitKind.TEARDOWN),
        (r"c10d::(TCPStore|TCPClient|PrefixStore|FileStore|HashStore|detail::TCPClient)", WaitKind.STORE),
        (r"ProcessGroup\w*::(send|recv)|ncclSend|ncclRecv|UnboundBuffer::waitRecv|UnboundBuffer::waitSend", WaitKind.POINT_TO_POINT),
        (r"ncclCommInitRank|ncclCommSplit|ncclCommInit\w*|bootstrap\w*Init|bootstrapAllGather", WaitKind.COLLECTIVE),
        (r"c10d::Reducer::|torch::autograd::Engine::(execute|thread_main)|PythonEngine::execute", WaitKind.BACKWARD),
        (r"c10d::Work|WorkNCCL::|ProcessGroup\w*::\w|ncclAll\w+|ncclBroadcast|ncclReduce\w*|ncclGroupEnd", WaitKind.COLLECTIVE),
        (r"\bgloo::|\bP?MPI_\w+|opal_progress|horovod::", WaitKind.COLLECTIVE),
        (r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Ctx|Event)Synchronize|c10::cuda::\w*[sS]ynchronize", WaitKind.DEVICE),
        (r"(cuda|hip|cu)Memcpy|_local_scalar_dense|(cuda|cu|hip)LaunchKernel|cudaFree|cuMemFree", WaitKind.DEVICE),
        (r"gomp_|GOMP_|__kmp|omp_fn|rayon|pthread_mutex_lock|lll_lock_wait|std::mutex::lock|os_unfair_lock", WaitKind.LOCK),
    )
)
# The C library's own functions at the top of a stack, by the system call each is blocked in.
_CALLS = {
    **dict.fromkeys(("open", "open64", "openat", "openat64", "creat"), "openat"),
    **dict.fromkeys(("pread", "pread64"), "pread64"),
    **dict.fromkeys(("pwrite", "pwrite64"), "pwrite64"),
    **dict.fromkeys(("fsync", "fdatasync", "flock", "statx", "rename", "unlink", "mkdir", "close"), None),
    **dict.fromkeys(("stat", "stat64", "fstat64", "fstatat64", "newfstatat", "lstat64", "xstat64", "xstat"), "newfstatat"),
    **dict.fromkeys(("getdents64", "readdir64", "readdir"), "getdents64"),
    **dict.fromkeys(("nanosleep", "clock_nanosleep", "usleep", "sleep"), "clock_nanosleep"),
    **dict.fromkeys(("accept4", "accept"), "accept4"),
    **dict.fromkeys(("recv", "recvfrom", "recvmsg"), "recvfrom"),
    **dict.fromkeys(("poll", "ppoll"), "poll"),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "select", "wait4", "waitpid"), None),
}
_FUTEX = re.compile(r"futex|pthread_cond_|sem_wait|new_sem|lll_lock|pthread_mutex_lock|pthread_\w*join|std::condition_variable::wait")
_PLAIN = re.compile(r"^(?:__GI_+|__libc_|_+)?([a-z]\w*?)(?:_nocancel|_time64|_common)?$")
_POLL = re.compile(r"poll (\d+) (\d+)$")
# read and write may be of a pipe or a socket: only Python's own file object makes them a file's.
_FILE_OBJECT = re.compile(r"FileIO_|_io__Buffered|_bufferedreader|os_read|os_pread|PyTorchStream|mmap|fread|fwrite|_io_")
_SOCKET = re.compile(r"sock_|SSL|ssl|Socket")


def native_meaning(native: tuple[str, ...]) -> tuple[WaitKind, str] | None:
    """The kind of wait that a C stack shows and the function that says so, or None."""
    for pattern, kind in _ROWS:
        found = next((name for name in native if pattern.search(name)), None)
        if found is not None:
            return kind, found.rpartition("::")[2] or found
    return None


def native_call(native: tuple[str, ...]) -> SystemCall | None:
    """The system call that the innermost C function is, where its name tells; of a read only where a file object made it."""
    if not native:
        return None
    if any(_FUTEX.search(name) for name in native[:3]):
        return SystemCall("futex")
    if asked := _POLL.match(native[0]):
        return SystemCall("poll", (0, int(asked[1]), int(asked[2])))
    found = _PLAIN.match(native[0])
    name = found[1] if found else ""
    if name in {"read", "write"}:
        above = native[1:8]
        is_file = any(_FILE_OBJECT.search(each) for each in above) and not any(_SOCKET.search(each) for each in above)
        return SystemCall(name) if is_file else None
    return SystemCall(_CALLS[name] or name) if name in _CALLS else None


def waits_for_gil(native: tuple[str, ...]) -> bool:
    """True for a thread that asks for the interpreter's lock."""
    return any("take_gil" in name for name in native[:8])


def extension_function(native: tuple[str, ...]) -> str | None:
    """The innermost function that is an extension's, where no function of the interpreter lies above it."""
    own = next((name for name in native if not _C_LIBRARY.match(name)), None)
    return own if own is not None and not _INTERPRETER.match(own) else None


_C_LIBRARY = re.compile(
    r"0x|_*(?:GI_)*_*(?:pthread|futex|lll|poll|read|write|epoll|select|nanosleep|clock_nanosleep|sched_yield|syscall|sem|accept|recv)"
)
_INTERPRETER = re.compile(r"_?Py|PyEval|method_|cfunction|slot_|lock_PyThread|acquire_timed|take_gil|time_sleep|select_|sock_")
