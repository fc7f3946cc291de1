"""What a process got done between two looks. Never CPU alone: whoever spins or waits in a busy loop burns it too."""

from collections import Counter
from typing import NamedTuple

from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, RankSample, Snapshot, Stack

# A rank's background threads (gloo's loop wakes 100 times a second) cost about 1 tick of 10 ms a second; real work costs more.
_BUSY_TICKS = 10
# A heartbeat line is a few hundred bytes; what moves a training moves more.
_IO_BYTES = 65536
# The same moved in all looks together is work if it still goes on: heartbeats are less than a kilobyte a second.
_STEADY_BYTES, _STEADY_BYTES_PER_S = 4096, 1024
_MEMORY_BYTES = 1 << 20
# An idle connection is silent but for keep-alive probes, which carry no data.
_NETWORK_BYTES = 64
# What goes out may be heartbeats or metrics of a background thread, told to whoever listens: an upload is more than that, whatever the time
# between two looks.
_SENT_BYTES_PER_S, _SENT_S = 1024, 4.0
_MINOR_FAULTS = 256
# A loop of two or three lines shows at most three lines of one function however often one looks: more lines, or another function, is
# different work. So is a process that touches new memory while it computes: a spinning loop has all it needs.
_FEWEST_LINES, _FEWEST_FUNCTIONS = 4, 2
_WORKING_FAULTS = 16
_LOOKS_TO_TELL_A_SPIN = 5
# A look without a pause may meet the moment in which the lock changes hands.
_HOLDS_RATIO = 0.8


class Effort(Record, frozen=True, kw_only=True):
    """What was seen of one process. `spins`: it burns CPU in the same few lines and got nothing done in all looks; None: not known yet.

    `keeps_lock`: its main thread holds the interpreter's lock in all of them, or nearly. `since_mono_s` is the first of these looks
    (Snapshot.at_mono_s).
    """

    done: tuple[str, ...] = ()
    busy: bool = False
    spins: bool | None = None
    keeps_lock: bool = False
    since_mono_s: float | None = None


class Looks:
    """The looks at hand, in order, so that one rank is found in them at once: a job may have thousands."""

    def __init__(self, history: tuple[Snapshot, ...]) -> None:
        self._looks = tuple((snapshot, {sample.rank: sample for sample in reversed(snapshot.ranks)}) for snapshot in history)
        self._addresses: dict[int, frozenset[str]] = {}

    def samples(self, rank: int) -> list[tuple[Snapshot, RankSample]]:
        """One rank, in each look in which it was seen."""
        return [(snapshot, ranks[rank]) for snapshot, ranks in self._looks if rank in ranks]

    def seen(self, rank: int, pid: int) -> "list[_Seen]":
        """One process of one rank, in each look in which it was seen."""
        samples = ((place, snapshot, ranks.get(rank)) for place, (snapshot, ranks) in enumerate(self._looks))
        found = ((place, snapshot, _find(sample, pid)) for place, snapshot, sample in samples if sample is not None)
        return [_Seen(snapshot, place, *process) for place, snapshot, process in found if process is not None]

    def own_addresses(self, place: int) -> frozenset[str]:
        """Where the job's own processes could be reached in the look at this place."""
        if place not in self._addresses:
            self._addresses[place] = _own_addresses(self._looks[place][0])
        return self._addresses[place]


def effort(looks: Looks, rank: int, pid: int) -> Effort:
    """The effort of one process of one rank, over the looks at hand. With a single look nothing is known to have been done."""
    seen = looks.seen(rank, pid)
    if len(seen) < 2 or seen[-2].process.id != seen[-1].process.id:
        return Effort()
    before, after = seen[-2], seen[-1]
    ticks = after.process.cpu_ticks - before.process.cpu_ticks
    busy = ticks >= _BUSY_TICKS
    leaves = [leaf for each in seen if (leaf := _leaf(each.stack)) is not None]
    moved = len(set(leaves)) >= _FEWEST_LINES or len({(file, name) for file, name, _ in leaves}) >= _FEWEST_FUNCTIONS
    touches = after.process.minor_faults - seen[0].process.minor_faults >= _WORKING_FAULTS
    done = _got_done(looks, before, after)
    if busy and (moved or touches):
        done.append(f"computes ({ticks * 10} ms of CPU, {'its frames change' if moved else 'it touches new memory'})")
    done += [] if done else [*_steadily(seen), *_moves_on(before, after)]
    ever = done or _got_done(looks, seen[0], after)
    keeps_lock = _holds_the_interpreter(seen)
    tells = busy and len(leaves) >= _LOOKS_TO_TELL_A_SPIN and keeps_lock
    spins = not ever if tells else None
    return Effort(done=tuple(done), busy=busy, spins=spins, keeps_lock=keeps_lock, since_mono_s=seen[0].snapshot.at_mono_s)


class _Seen(NamedTuple):
    """One process in one look."""

    snapshot: Snapshot
    place: int
    process: ProcessSample
    stack: Stack | Missing


def _holds_the_interpreter(seen: list[_Seen]) -> bool:
    """A loop in Python holds its interpreter's lock in every look; torch's and most libraries' own work gives it back meanwhile."""
    threads = [thread for each in seen if isinstance(each.stack, Stack) and (thread := each.stack.main_thread()) is not None]
    return sum(thread.owns_gil for thread in threads) >= _HOLDS_RATIO * len(threads) > 0


def _got_done(looks: Looks, before: _Seen, after: _Seen) -> list[str]:
    first, last = before.process, after.process
    return [*_storage(first, last), *_network(looks, before, after), *_memory(first, last)]


def _find(sample: RankSample, pid: int) -> tuple[ProcessSample, Stack | Missing] | None:
    if isinstance(sample.process, ProcessSample) and sample.process.id.pid == pid:
        return sample.process, sample.stack
    for child in sample.descendants:
        if child.id.pid == pid:
            return child, sample.child_stacks.get(pid, Missing("not taken"))
    return None


def _leaf(stack: Stack | Missing) -> tuple[str, str, int] | None:
    thread = stack.main_thread() if isinstance(stack, Stack) else None
    if thread is None or not thread.frames:
        return None
    frame = thread.frames[0]
    return frame.file, frame.name, frame.line


def _storage(before: ProcessSample, after: ProcessSample) -> list[str]:
    """What it moved by calls that returned, or to and from storage: one call for a large array returns when all of it is there."""
    if isinstance(before.io, Missing) or isinstance(after.io, Missing):
        return []
    first, last = before.io, after.io
    moved = {
        "read": max(last.read_chars_bytes - first.read_chars_bytes, last.read_storage_bytes - first.read_storage_bytes),
        "wrote": max(last.written_chars_bytes - first.written_chars_bytes, last.written_storage_bytes - first.written_storage_bytes),
    }
    return [f"{verb} {size} bytes" for verb, size in moved.items() if size >= _IO_BYTES]


def _steadily(seen: list[_Seen]) -> list[str]:
    """What slow storage takes or gives, too little between two looks to be told from a log's lines.

    Bytes read count only where they came from storage: monitors read /proc all the time, and from much memory.
    """
    counts = [io for each in seen if (io := _slow_bytes(each.process)) is not None]
    if len(counts) < 3:
        return []
    pause_s = seen[-1].snapshot.at_mono_s - seen[-2].snapshot.at_mono_s
    still = max(_STEADY_BYTES, _STEADY_BYTES_PER_S * pause_s)
    kinds = zip(("read", "wrote"), counts[0], counts[-2], counts[-1], strict=True)
    moved = [(verb, last - first) for verb, first, before, last in kinds if last - before >= still]
    return [f"{verb} {size} bytes in {len(counts)} looks" for verb, size in moved if size >= _IO_BYTES]


def _slow_bytes(process: ProcessSample) -> tuple[int, int] | None:
    io = process.io
    return None if isinstance(io, Missing) else (io.read_storage_bytes, max(io.written_chars_bytes, io.written_storage_bytes))


def _moves_on(before: _Seen, after: _Seen) -> list[str]:
    """Two looks met the same file call on the same file, further on: a file that is read or written in small pieces."""
    was, now = before.process.system_call, after.process.system_call
    if isinstance(was, Missing) or isinstance(now, Missing) or now.path is None or (was.name, was.path) != (now.name, now.path):
        return []
    moved = (now.offset_bytes or 0) - (was.offset_bytes or 0)
    return [f"moved on by {moved} bytes in {now.path.rpartition('/')[2]}"] if moved > 0 and now.path.startswith("/") else []


def _network(looks: Looks, before: _Seen, after: _Seen) -> list[str]:
    """What came in from outside of the job, a trickle too, or was taken there.

    Peers' sockets do not count: NCCL's watchdog asks the store every second.
    """
    if isinstance(before.process.sockets, Missing) or isinstance(after.process.sockets, Missing):
        return []
    peers = looks.own_addresses(after.place)
    had = {each.inode: (each.received_bytes, each.acked_bytes) for each in before.process.sockets}
    received, sent = Counter[str](), Counter[str]()
    for each in after.process.sockets:
        if each.remote not in peers:
            received_before, acked_before = had.get(each.inode, (0, 0))
            received[each.remote] += each.received_bytes - received_before
            sent[each.remote] += each.acked_bytes - acked_before
    least_sent = _SENT_BYTES_PER_S * max(_SENT_S, after.snapshot.at_mono_s - before.snapshot.at_mono_s)
    came = [f"received {size} bytes from {remote}" for remote, size in received.items() if size >= _NETWORK_BYTES]
    return came + [f"sent {size} bytes to {remote}" for remote, size in sent.items() if size >= least_sent]


def _own_addresses(snapshot: Snapshot) -> frozenset[str]:
    """Where the job's own processes can be reached: whatever comes from there is no news from outside."""
    processes = [child for sample in snapshot.ranks for child in sample.descendants]
    processes += [sample.process for sample in snapshot.ranks if isinstance(sample.process, ProcessSample)]
    return frozenset(each.local for process in processes if not isinstance(process.sockets, Missing) for each in process.sockets)


def _memory(before: ProcessSample, after: ProcessSample) -> list[str]:
    done = []
    if after.major_faults > before.major_faults:
        done.append(f"paged in from storage ({after.major_faults - before.major_faults} major faults)")
    grown = after.resident_bytes - before.resident_bytes
    if grown >= _MEMORY_BYTES and after.minor_faults - before.minor_faults >= _MINOR_FAULTS:
        done.append(f"its memory grew by {grown >> 20} MiB")
    return done
