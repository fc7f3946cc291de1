"""What a rank's probe tells of it: its marks, and its flight recording. Everything works without; then less is known."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from rankpatrol.collect.flight import fetch_recording
from rankpatrol.collect.marks import read_marks
from rankpatrol.core.records import Missing, ProcessId
from rankpatrol.core.snapshot import FlightRecording, Marks
from rankpatrol.launch.rundir import RankPlace
from rankpatrol.system.process import boot_id

# 2000 entries take 0.15 s, also of a rank that holds the GIL; a stopped rank answers nobody.
_RECORDING_S = 1.5
_NO_PROBE = Missing("no probe in this rank (--no-probe, or its Python ignores PYTHONPATH)")


def recordings_of(places: Iterable[RankPlace]) -> dict[int, FlightRecording | Missing]:
    """All ranks' flight recordings, fetched side by side: their sequences should be of one moment.

    A rank spends CPU and memory on its answer, as if it worked: ask only where it is known to wait, or will be ended anyway.
    """
    ranks = list(places)
    with ThreadPoolExecutor(max_workers=8) as pool:
        return dict(zip((place.rank for place in ranks), pool.map(_recording_of, ranks), strict=True))


def marks_of(place: RankPlace) -> Marks | Missing:
    """One rank's marks, from the memory that its shim holds."""
    if place.marks_fd is None:
        return _NO_PROBE
    return read_marks(ProcessId(boot_id(), place.shim_pid, place.shim_start_ticks), place.marks_fd)


def _recording_of(place: RankPlace) -> FlightRecording | Missing:
    return _NO_PROBE if place.probe_socket is None else fetch_recording(place.probe_socket, _RECORDING_S)
