"""What a rank's probe tells of it: marks, flight recording, stacks that nobody may read. Everything works without; then less is known."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from rankpatrol.collect.flight import fetch_recording, fetch_recording_with_lines
from rankpatrol.collect.interpreter import gives_lock
from rankpatrol.collect.marks import read_marks
from rankpatrol.collect.told_stacks import StackPipe
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import FlightRecording, Marks, RankSample, Snapshot, Stack
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.process import boot_id, has_ended, read_stat, stat_fields

# 2000 entries take 0.15 s, also of a rank that holds the GIL; a stopped rank answers nobody.
_RECORDING_S = 1.5
# The first answer with lines takes 1 to 8 s: torch imports its compiler for it.
_LINES_S = 8.0
# Python code gives its lock up every 5 ms; a machine under load may take its time all the same.
_LOCK_S, _LOCKS = 2.0, 8
_Told = FlightRecording | Missing
_ENDED = Missing("this rank has ended, and its flight recorder with it")
_NO_PROBE = Missing("no probe in this rank (--no-probe, or its Python ignores PYTHONPATH)")


def recordings_of(places: Iterable[RankPlace]) -> dict[int, FlightRecording | Missing]:
    """All ranks' flight recordings, fetched side by side: their sequences should be of one moment.

    A rank spends CPU and memory on its answer, as if it worked: ask only where it is known to wait, or will be ended anyway.
    """
    ranks = list(places)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip((place.rank for place in ranks), pool.map(_recording_of, ranks), strict=True))


def lines_of(places: Iterable[RankPlace]) -> dict[int, FlightRecording | Missing]:
    """The same with lines of code. It costs a rank more than a second of CPU: ask only one of each side of a proved disagreement."""
    ranks = [place for place in places if place.probe_socket is not None and _silence_of(place) is None]
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = pool.map(lambda place: fetch_recording_with_lines(place.probe_socket or "", _LINES_S), ranks)
        return dict(zip((place.rank for place in ranks), found, strict=True))


def locks_of(places: Iterable[RankPlace]) -> dict[int, bool | Missing]:
    """Whether these ranks, the first eight of them, give their interpreter's lock to a thread that asks; elsewhere that thread waits on."""
    ranks = list(places)[:_LOCKS]
    with ThreadPoolExecutor(max_workers=_LOCKS) as pool:
        return dict(zip((place.rank for place in ranks), pool.map(_lock_of, ranks), strict=True))


def _lock_of(place: RankPlace) -> bool | Missing:
    return _NO_PROBE if place.probe_socket is None else gives_lock(place.probe_socket, _LOCK_S)


def with_known_lines(found: Mapping[int, _Told], lined: Mapping[int, FlightRecording]) -> dict[int, _Told]:
    """The recordings, but those with lines in the place of what is otherwise the same: a rank that stands is asked for them once."""
    return {rank: known if (known := lined.get(rank)) and _same(known, fresh) else fresh for rank, fresh in found.items()}


def _same(known: FlightRecording, fresh: _Told) -> bool:
    def plain(recording: FlightRecording) -> list[tuple[str, int, str, bool]]:
        return [(each.group, each.sequence, each.operation, each.retired) for each in recording.entries]

    return isinstance(fresh, FlightRecording) and plain(known) == plain(fresh)


def marks_of(place: RankPlace) -> Marks | Missing:
    """One rank's marks, from the memory that its shim holds."""
    if place.marks_fd is None:
        return _NO_PROBE
    return read_marks(ProcessId(boot_id(), place.shim_pid, place.shim_start_ticks), place.marks_fd)


def stacks_of(place: RankPlace) -> StackPipe | None:
    """Where this rank would tell its stacks itself."""
    if place.stacks_fd is None:
        return None
    shim = ProcessId(boot_id(), place.shim_pid, place.shim_start_ticks)
    return StackPipe(shim=shim, fd=place.stacks_fd, marks_fd=place.marks_fd, rank=ProcessId(boot_id(), place.pid, place.start_ticks))


def _recording_of(place: RankPlace) -> FlightRecording | Missing:
    if place.probe_socket is None:
        return _NO_PROBE
    return _silence_of(place) or fetch_recording(place.probe_socket, _RECORDING_S)


def _silence_of(place: RankPlace) -> Missing | None:
    """Why nobody would answer at its socket, though a connection may be had: a dead rank's loader processes have inherited it."""
    if has_ended(ProcessId(boot_id(), place.pid, place.start_ticks)):
        return _ENDED
    try:
        state = stat_fields(read_stat(place.pid))[0]
    except OSError:
        return None  # hidden from us, and the socket is not
    return Missing("this rank stands stopped: it answers nobody") if state in "Tt" else None


def told_by_itself(snapshot: Snapshot) -> tuple[str, ...]:
    """Who was sent a signal for its stacks."""
    return tuple(f"rank {sample.rank}: it told its stacks itself, at a SIGURG" for sample in snapshot.ranks if _has_told(sample))


def _has_told(sample: RankSample) -> bool:
    return any(isinstance(stack, Stack) and stack.told for stack in (sample.stack, *sample.child_stacks.values()))
