"""What a process got done between two looks. Never CPU alone: whoever spins or waits in a busy loop burns it too."""

from rankpatrol.core.records import Missing, Record
from rankpatrol.core.snapshot import ProcessSample, Snapshot, Stack

# A rank's background threads (gloo's loop wakes 100 times a second) cost about 1 tick of 10 ms a second; real work costs more.
_BUSY_TICKS = 10
# A heartbeat line is a few hundred bytes; what moves a training moves more.
_IO_BYTES = 65536
_MEMORY_BYTES = 1 << 20
_MINOR_FAULTS = 256
# A loop of two or three lines shows at most three lines of one function however often one looks: more lines, or another function, is
# different work. So is a process that touches new memory while it computes: a spinning loop has all it needs.
_FEWEST_LINES, _FEWEST_FUNCTIONS = 4, 2
_WORKING_FAULTS = 16
_LOOKS_TO_TELL_A_SPIN = 5


class Effort(Record, frozen=True, kw_only=True):
    """What was seen of one process. `spins`: it burns CPU in the same few lines in every look; None: too few looks to tell."""

    done: tuple[str, ...]
    busy: bool
    spins: bool | None


def effort(history: tuple[Snapshot, ...], rank: int, pid: int) -> Effort:
    """The effort of one process of one rank, over the looks at hand. With a single look nothing is known to have been done."""
    seen = [(sample, stack) for sample, stack in (_find(snapshot, rank, pid) for snapshot in history) if sample is not None]
    if len(seen) < 2:
        return Effort(done=(), busy=False, spins=None)
    before, after = seen[-2][0], seen[-1][0]
    if before.id != after.id:
        return Effort(done=(), busy=False, spins=None)
    ticks = after.cpu_ticks - before.cpu_ticks
    busy = ticks >= _BUSY_TICKS
    leaves = [leaf for _, stack in seen if (leaf := _leaf(stack)) is not None]
    moved = len(set(leaves)) >= _FEWEST_LINES or len({(file, name) for file, name, _ in leaves}) >= _FEWEST_FUNCTIONS
    touches = seen[-1][0].minor_faults - seen[0][0].minor_faults >= _WORKING_FAULTS
    done = [*_storage(before, after), *_memory(before, after)]
    if busy and (moved or touches):
        done.append(f"computes ({ticks * 10} ms of CPU, {'its frames change' if moved else 'it touches new memory'})")
    return Effort(done=tuple(done), busy=busy, spins=not done if busy and len(leaves) >= _LOOKS_TO_TELL_A_SPIN else None)


def _find(snapshot: Snapshot, rank: int, pid: int) -> tuple[ProcessSample | None, Stack | Missing]:
    for each in snapshot.ranks:
        if each.rank == rank:
            if isinstance(each.process, ProcessSample) and each.process.id.pid == pid:
                return each.process, each.stack
            for child in each.descendants:
                if child.id.pid == pid:
                    return child, each.child_stacks.get(pid, Missing("not taken"))
    return None, Missing("not seen")


def _leaf(stack: Stack | Missing) -> tuple[str, str, int] | None:
    thread = stack.main_thread() if isinstance(stack, Stack) else None
    if thread is None or not thread.frames:
        return None
    frame = thread.frames[0]
    return frame.file, frame.name, frame.line


def _storage(before: ProcessSample, after: ProcessSample) -> list[str]:
    if isinstance(before.io, Missing) or isinstance(after.io, Missing):
        return []
    moved = {
        "read": after.io.read_chars_bytes - before.io.read_chars_bytes,
        "wrote": after.io.written_chars_bytes - before.io.written_chars_bytes,
    }
    return [f"{verb} {size} bytes" for verb, size in moved.items() if size >= _IO_BYTES]


def _memory(before: ProcessSample, after: ProcessSample) -> list[str]:
    done = []
    if after.major_faults > before.major_faults:
        done.append(f"paged in from storage ({after.major_faults - before.major_faults} major faults)")
    grown = after.resident_bytes - before.resident_bytes
    if grown >= _MEMORY_BYTES and after.minor_faults - before.minor_faults >= _MINOR_FAULTS:
        done.append(f"its memory grew by {grown >> 20} MiB")
    return done
