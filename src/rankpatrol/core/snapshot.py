"""What is seen of a job at one moment. Collectors fill it, `analysis` reads it, bundles keep it."""

import msgspec

from rankpatrol.core.records import Missing, ProcessId, Record


class SystemCall(Record, frozen=True, tag="system_call"):
    """The system call a thread is blocked in, from /proc/PID/syscall; `name` is "running" while it is in user space.

    `path` is the file the call names or its descriptor leads to, where that could be read; `offset_bytes` is that descriptor's.
    """

    name: str
    arguments: tuple[int, ...] = ()
    path: str | None = None
    offset_bytes: int | None = None


class OpenFile(Record, frozen=True):
    """One descriptor, from /proc/PID/fd and fdinfo."""

    fd: int
    path: str
    offset_bytes: int


class IoCounters(Record, frozen=True, tag="io"):
    """Bytes a process moved through read and write calls (`_chars_`), and to or from storage, from /proc/PID/io."""

    read_chars_bytes: int
    written_chars_bytes: int
    read_storage_bytes: int
    written_storage_bytes: int


class SocketBytes(Record, frozen=True, kw_only=True):
    """One TCP connection of a process and how many bytes of data it has received (TCP_INFO of tcp(7)). Addresses as `host:port`.

    `acked_bytes` is what it sent and the other side's kernel has taken; a socket's buffer full that nobody takes does not count.
    `unacked_segments` were sent and not acknowledged, and the oldest of them was sent again `retransmits` times so far: nobody answers.
    `round_trip_s` is the kernel's smoothed estimate, 0 where it has none; `repeated_segments` counts all that were ever sent again.
    """

    inode: int
    local: str
    remote: str
    received_bytes: int
    unacked_segments: int = 0
    retransmits: int = 0
    round_trip_s: float = 0.0
    repeated_segments: int = 0
    acked_bytes: int = 0


class ProcessSample(Record, frozen=True, tag="process", kw_only=True):
    """One process at one moment, from /proc alone. Switches and `main_thread_ticks` are the main thread's, the rest the whole process's.

    `children_ticks` is the CPU that its children had used when it waited for their ends, and theirs for theirs.
    """

    id: ProcessId
    parent_pid: int
    name: str
    command: tuple[str, ...] | Missing
    state: str
    tracer_pid: int
    wait_channel: str | Missing
    system_call: SystemCall | Missing
    cpu_ticks: int
    main_thread_ticks: int
    voluntary_switches: int
    involuntary_switches: int
    minor_faults: int
    major_faults: int
    resident_bytes: int
    io: IoCounters | Missing
    open_files: tuple[OpenFile, ...] | Missing
    thread_names: tuple[str, ...]
    sockets: tuple[SocketBytes, ...] | Missing = Missing("connections were not looked at in this round")
    children_ticks: int = 0


class Frame(Record, frozen=True):
    """One Python frame."""

    name: str
    file: str
    line: int


class ThreadStack(Record, frozen=True, kw_only=True):
    """One thread's Python frames, innermost first. `thread_id` is the kernel's; `native` holds C functions, where a dump showed them."""

    thread_id: int | None
    name: str | None
    active: bool
    owns_gil: bool
    frames: tuple[Frame, ...]
    native: tuple[str, ...] = ()


class Stack(Record, frozen=True, tag="stack"):
    """The Python stacks of all threads of one process. `told`: it wrote them itself, at a signal (collect/told_stacks.py)."""

    pid: int
    threads: tuple[ThreadStack, ...]
    told: bool = False

    def main_thread(self) -> ThreadStack | None:
        """The thread whose kernel id is the pid, else the only one whose name says so."""
        for thread in self.threads:
            if thread.thread_id == self.pid:
                return thread
        named = [thread for thread in self.threads if thread.name == "MainThread"]
        return named[0] if len(named) == 1 else None


class LogSample(Record, frozen=True, tag="log"):
    """One rank's log: its size, its last lines, and the highest step it has named so far. `losses`: the last it has named, as written.

    `loss_lost`: the last of them is no number, and none has been since `lost_at_step`, where that step is known.
    """

    size_bytes: int
    tail: tuple[str, ...]
    step: int | None
    losses: tuple[str, ...] = ()
    loss_lost: bool = False
    lost_at_step: int | None = None


class ProcessGroup(Record, frozen=True, kw_only=True):
    """One process group that a rank is a member of, as its probe saw it made. `ranks` are global."""

    name: str
    backend: str
    ranks: tuple[int, ...]
    timeout_s: float | None


class Marks(Record, frozen=True, tag="marks", kw_only=True):
    """What a rank's probe marked: optimizer steps, the phase it is in, its groups. Times are the node's CLOCK_BOOTTIME, in seconds.

    `raised_at_mono_s`: its program had ended with an exception by then, and its interpreter began to go down.
    """

    steps: int
    last_step_at_mono_s: float | None
    phase: str
    phase_since_mono_s: float
    groups: tuple[ProcessGroup, ...]
    raised_at_mono_s: float | None = None


class Collective(Record, frozen=True, kw_only=True):
    """One entry of a flight recorder. `sequence` counts within the group; `retired`: it is over (gloo leaves `state` at scheduled)."""

    group: str
    sequence: int
    operation: str
    is_p2p: bool
    state: str
    retired: bool
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    timeout_s: float | None = None
    frames: tuple[Frame, ...] = ()


def is_pending(entry: Collective) -> bool:
    """True for an operation that is entered and not over."""
    return not entry.retired and entry.state != "completed"


class GroupStatus(Record, frozen=True, kw_only=True):
    """How far one rank is in one group: sequences of the last collective enqueued, started and completed; -1 for none."""

    enqueued: int
    started: int
    completed: int


class FlightRecording(Record, frozen=True, tag="flight_recording", kw_only=True):
    """One rank's flight recorder, oldest entry first. `members` holds the global ranks of each group where the dump tells them."""

    version: str
    members: dict[str, tuple[int, ...]]
    status: dict[str, GroupStatus]
    entries: tuple[Collective, ...]


class RankSample(Record, frozen=True, kw_only=True):
    """One rank at one moment: its process, every descendant, their stacks (by pid) and its log.

    `exit_status` is None while it runs, negative for a signal; `ended_unix_s` is its shim's word, comparable on one node alone.
    `gives_lock`: another thread of it that asked for the interpreter's lock has got it; False: not within some seconds.
    """

    rank: int
    local_rank: int
    node: str
    shim_pid: int
    pid: int
    exit_status: int | None = None
    ended_unix_s: float | None = None
    process: ProcessSample | Missing
    descendants: tuple[ProcessSample, ...] = ()
    stack: Stack | Missing = Missing("no stack was taken in this round")
    child_stacks: dict[int, Stack | Missing] = msgspec.field(default_factory=dict)
    log: LogSample | Missing = Missing("no log was read in this round")
    marks: Marks | Missing = Missing("no probe in this rank")
    recording: FlightRecording | Missing = Missing("no probe in this rank")
    gives_lock: bool | Missing = Missing("no thread of it was asked to take the interpreter's lock")


class KernelKills(Record, frozen=True, tag="kills"):
    """What the kernel wrote of each process it killed for want of memory (oom_kill.c), by pid."""

    lines: dict[int, str]


class DiskRoom(Record, frozen=True, tag="room"):
    """How many bytes the file system under each path has left for a user's files."""

    available_bytes: dict[str, int]


class Snapshot(Record, frozen=True, kw_only=True):
    """All ranks of one attempt at one moment. `at_mono_s` is this node's monotonic clock: never compared across nodes.

    `kills` are the kernel's own lines of processes it killed, by pid; Missing where its log may not be read. `silent_nodes`: for how many
    seconds nodes of the job have told nothing. `room` is asked for where a rank could not write a checkpoint.
    """

    job: str
    attempt: int
    at_mono_s: float
    at_unix_s: float
    world_size: int
    ranks: tuple[RankSample, ...]
    kills: KernelKills | Missing = Missing("the kernel log was not read in this round")
    silent_nodes: dict[str, float] = msgspec.field(default_factory=dict)
    room: DiskRoom | Missing = Missing("no disk was asked for its room in this round")
