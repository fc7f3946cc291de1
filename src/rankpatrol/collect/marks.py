"""What a rank's probe has marked, read from the memory that its shim holds: no word with the rank, no pause, however stuck it is.

The numbers are those of launch/probe/layout.py, which the training's own Python runs; a test holds the two together.
"""

import errno
import os
import stat
import struct

import msgspec

from rankpatrol.core.records import Missing, ProcessId, Record
from rankpatrol.core.snapshot import Marks, ProcessGroup
from rankpatrol.system.process import identify, read_stat, stat_fields

SIZE_BYTES = 16384
MAGIC = b"RPMARKS2"
HEADER = struct.Struct("=8s8Q")
PHASE_CODES = 16
SERVES, UNCOUNTED, ANSWERS = 1, 2, 4
PHASES = ("initialisation", "first_step", "train_step", "checkpoint", "evaluation", "compile", "teardown")
AREA_BYTES = 8152
AREAS_AT = (72, 72 + AREA_BYTES)
_TRIES = 5
_NS = 1e9
NOT_LOADED = Missing(
    "the rank's Python has not loaded the probe: it started just now, or it ignores PYTHONPATH (python -I, -E or -S), or it is no Python"
)


class Even(Record, frozen=True):
    """Evenly spaced ranks."""

    first: int
    count: int
    step: int


class WrittenGroup(Record, frozen=True):
    """One group as the probe writes it."""

    name: str
    backend: str
    ranks: Even | list[int]
    timeout_s: float | None


def read_marks(shim: ProcessId, fd: int) -> Marks | Missing:
    """The marks behind this descriptor of this very shim."""
    marks_fd = _open(shim, fd)
    if isinstance(marks_fd, Missing):
        return marks_fd
    try:
        return _read(marks_fd)
    except OSError as problem:
        return Missing(f"cannot read the marks of shim {shim.pid}: {problem.strerror}")
    finally:
        os.close(marks_fd)


def offers_stacks(shim: ProcessId, fd: int) -> bool:
    """Whether the rank's probe has registered a handler that writes stacks, and nobody has taken its signal since."""
    marks_fd = _open(shim, fd)
    if isinstance(marks_fd, Missing):
        return False
    try:
        magic, pid, _, _, _, _, flags, _, _ = HEADER.unpack(os.pread(marks_fd, HEADER.size, 0))
    except (OSError, struct.error):
        return False
    finally:
        os.close(marks_fd)
    return magic == MAGIC and pid != 0 and bool(flags & ANSWERS)


def _open(shim: ProcessId, fd: int) -> int | Missing:
    if identify(shim.pid) != shim:
        return Missing(f"shim {shim.pid} is gone, and the rank's marks with it")
    try:
        # Never waits, whatever stands there: a pipe would wait for its writer.
        marks_fd = os.open(f"/proc/{shim.pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        return _refused(shim, fd, problem)
    status = os.fstat(marks_fd)
    # Asked again after it is open: from here on the descriptor is the one of whoever wears the pid now.
    if identify(shim.pid) != shim:
        os.close(marks_fd)
        return Missing(f"shim {shim.pid} is gone, and the rank's marks with it")
    if not stat.S_ISREG(status.st_mode) or status.st_size != SIZE_BYTES:
        os.close(marks_fd)
        return Missing(f"descriptor {fd} of shim {shim.pid} leads to no marks")
    return marks_fd


def _refused(shim: ProcessId, fd: int, problem: OSError) -> Missing:
    if problem.errno in {errno.EACCES, errno.EPERM}:
        return Missing(f"the kernel refuses /proc/{shim.pid}/fd: needs the same user and ptrace access")
    if problem.errno == errno.ENOENT:
        return Missing(f"shim {shim.pid} holds no descriptor {fd}")
    return Missing(f"cannot open the marks of shim {shim.pid}: {problem.strerror}")


def _read(marks_fd: int) -> Marks | Missing:
    """Read until two looks at the header agree: what was read between them belongs together."""
    for _ in range(_TRIES):
        before = os.pread(marks_fd, HEADER.size, 0)
        magic, pid, stack_start, steps, last_step_ns, phase, flags, sequence, raised_ns = HEADER.unpack(before)
        if magic != MAGIC:
            return Missing("the marks are of another version of rankpatrol")
        if not pid:
            return NOT_LOADED
        area = os.pread(marks_fd, AREA_BYTES, AREAS_AT[sequence % 2])
        if os.pread(marks_fd, HEADER.size, 0) != before:
            continue
        if _replaced(pid, stack_start):
            return Missing(f"rank process {pid} has become another program since it loaded the probe (exec)")
        if flags & UNCOUNTED:
            return Missing("optimizer steps run inside torch.compile here, where they cannot be counted")
        return _marks(steps, (last_step_ns, raised_ns), phase, _groups(area))
    return Missing("the marks changed faster than they could be read")


def _marks(steps: int, times_ns: tuple[int, int], phase: int, groups: tuple[ProcessGroup, ...] | Missing) -> Marks | Missing:
    since_ns, code = divmod(phase, PHASE_CODES)
    if isinstance(groups, Missing):
        return groups
    if code >= len(PHASES):
        return Missing(f"the marks name phase {code}, which this version of rankpatrol does not know")
    last_step_at_s, raised_at_s = (each / _NS if each else None for each in times_ns)
    return Marks(
        steps=steps,
        last_step_at_mono_s=last_step_at_s,
        raised_at_mono_s=raised_at_s,
        phase=PHASES[code],
        phase_since_mono_s=since_ns / _NS,
        groups=groups,
    )


def _groups(area: bytes) -> tuple[ProcessGroup, ...] | Missing:
    length = int.from_bytes(area[:4], "little")
    if not length:
        return ()
    try:
        written = msgspec.json.decode(area[4 : 4 + length], type=list[WrittenGroup])
    except msgspec.MsgspecError as problem:
        return Missing(f"the groups in the marks cannot be read: {problem}")
    return tuple(
        ProcessGroup(name=group.name, backend=group.backend, ranks=_ranks(group.ranks), timeout_s=group.timeout_s) for group in written
    )


def _ranks(ranks: Even | list[int]) -> tuple[int, ...]:
    if isinstance(ranks, Even):
        # Groups are no larger than jobs: what says otherwise is no group.
        count = min(ranks.count, 1 << 20)
        return tuple(ranks.first + index * ranks.step for index in range(count))
    return tuple(ranks)


def _replaced(pid: int, stack_start: int) -> bool:
    """True where the process began with another stack than the probe saw; where the kernel does not tell (0), it is taken as the same."""
    try:
        now = int(stat_fields(read_stat(pid))[25])
    except (OSError, ValueError):
        return False  # it ended: its last marks stand
    return 0 not in {now, stack_start} and now != stack_start
