"""A flight recorder's dump, JSON or pickle, of any schema from 1.x to 2.x, as a FlightRecording.

Fields as torch writes them: FlightRecorder.hpp and FlightRecorderDetail.hpp in torch/csrc/distributed/c10d.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rankpatrol.core.errors import BadInput
from rankpatrol.core.snapshot import Collective, FlightRecording, Frame, GroupStatus
from rankpatrol.formats.safe_pickle import MOST_BYTES, NotPlain, plain_value

DEFAULT_GROUP = "default_pg"
_KNOWN_VERSION = re.compile(r"[12](\.\d+)*")
_RANKS = re.compile(r"\[\s*(\d{1,7}(\s*,\s*\d{1,7})*)\s*\]")


class _Frame(msgspec.Struct, gc=False):
    name: str = "?"
    filename: str = "?"
    line: int = 0


class Entry(msgspec.Struct, gc=False):
    """One entry as torch writes it; of what it holds, what is compared."""

    profiling_name: str
    frames: list[_Frame] = []
    pg_id: int | str = 0
    process_group: tuple[str, ...] = ()
    collective_seq_id: int | None = None
    seq_id: int | None = None  # of schema 1.x
    p2p_seq_id: int = 0
    time_created_ns: int | None = None
    state: str = ""
    retired: bool | None = None
    is_p2p: bool = False
    timeout_ms: float | None = None
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()


class _Status(msgspec.Struct, gc=False):
    last_enqueued_collective: int = -1
    last_started_collective: int = -1
    last_completed_collective: int = -1


class _Group(msgspec.Struct, gc=False):
    name: str = ""
    desc: str = ""
    ranks: str | list[int] = ""


class Dump(msgspec.Struct, gc=False):
    """A whole dump. torch writes no rank into it; those who quote a dump often do."""

    version: str
    rank: int | None = None
    entries: list[Entry] = []
    pg_config: dict[str, _Group] = {}
    pg_status: dict[str | int, _Status] = {}


def parse_json(data: bytes) -> FlightRecording:
    """The recording in what `fr_trace_json` answers. Raises BadInput for anything else."""
    if len(data) > MOST_BYTES:
        raise refused(f"it has more than {MOST_BYTES} bytes")
    try:
        dump = msgspec.json.decode(data, type=Dump, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise refused(str(problem)) from problem
    return _recording(dump)


def parse_pickle(data: bytes) -> FlightRecording:
    """The recording in a dump file. Nothing in it is ever executed. Raises BadInput for anything else."""
    try:
        dump = msgspec.convert(plain_value(data), type=Dump, strict=False)
    except (NotPlain, msgspec.ValidationError) as problem:
        raise refused(str(problem)) from problem
    return _recording(dump)


def group_key(name: str, desc: str) -> str:
    """One word for a group: torch's default group by its description, a described one by both (`3:tp`), else by its name."""
    if desc == DEFAULT_GROUP:
        return DEFAULT_GROUP
    return name if desc in {"", "undefined"} else f"{name}:{desc}"


def _recording(dump: Dump) -> FlightRecording:
    check_version(dump.version)
    return FlightRecording(
        version=dump.version,
        members=members_of(dump),
        status=status_of(dump, {str(entry.pg_id): key_of(entry) for entry in dump.entries}),
        entries=tuple(collectives(dump.entries)),
    )


def check_version(version: str) -> None:
    """Raises BadInput for a schema that is not known."""
    if not _KNOWN_VERSION.fullmatch(version):
        raise refused(f"its version {ascii(version)[:40]} is not known")


def members_of(dump: Dump) -> dict[str, tuple[int, ...]]:
    """The groups that have a name: gloo registers its ranks before it has one, and the last group overwrites all others."""
    members = {group_key(group.name, group.desc): _ranks(group.ranks) for group in dump.pg_config.values() if group.name}
    return {key: ranks for key, ranks in members.items() if ranks}


def status_of(dump: Dump, keys: Mapping[str, str]) -> dict[str, GroupStatus]:
    """How far each group is. Of one whose entries have all left the ring, the dump tells the number alone: kept, so that it is known."""
    return {keys.get(str(number), f"pg_id {number}"): _status(status) for number, status in dump.pg_status.items()}


def _ranks(told: str | list[int]) -> tuple[int, ...]:
    if isinstance(told, list):
        return tuple(told)
    listed = _RANKS.fullmatch(told.strip())
    return tuple(int(rank) for rank in listed[1].split(",")) if listed else ()


def _status(status: _Status) -> GroupStatus:
    return GroupStatus(
        enqueued=status.last_enqueued_collective, started=status.last_started_collective, completed=status.last_completed_collective
    )


def collectives(entries: Iterable[Entry]) -> Iterable[Collective]:
    """The entries with equal parts shared: a thousand ranks' rings repeat a handful of shapes, names and stacks."""
    shared: dict[Any, Any] = {}
    frames: dict[tuple[str, str, int], Frame] = {}
    return (_collective(entry, shared.setdefault, frames) for entry in entries)


def collective(entry: Entry) -> Collective:
    """One entry."""
    return next(iter(collectives([entry])))


def _collective(entry: Entry, once: Callable[[Any, Any], Any], frames: dict[tuple[str, str, int], Frame]) -> Collective:
    stack = tuple([_frame(frame, frames) for frame in entry.frames])
    operation = entry.profiling_name.partition(":")[2] or entry.profiling_name
    group = key_of(entry)
    return Collective(
        group=once(group, group),
        sequence=sequence_of(entry),
        operation=once(operation, operation),
        is_p2p=entry.is_p2p,
        state=once(entry.state, entry.state),
        retired=entry.state == "completed" if entry.retired is None else entry.retired,
        input_sizes=once(entry.input_sizes, entry.input_sizes),
        input_dtypes=once(entry.input_dtypes, entry.input_dtypes),
        output_sizes=once(entry.output_sizes, entry.output_sizes),
        output_dtypes=once(entry.output_dtypes, entry.output_dtypes),
        timeout_s=None if entry.timeout_ms is None else entry.timeout_ms / 1000,
        frames=once(stack, stack),
    )


def _frame(frame: _Frame, known: dict[tuple[str, str, int], Frame]) -> Frame:
    key = (frame.name, frame.filename, frame.line)
    seen = known.get(key)
    if seen is None:
        seen = known[key] = Frame(*key)
    return seen


def key_of(entry: Entry) -> str:
    """The word for the group of an entry."""
    name, desc = (*entry.process_group, "", "")[:2]
    return group_key(name, desc) if name or desc else f"pg_id {entry.pg_id}"


def sequence_of(entry: Entry) -> int:
    """The number that counts within the entry's group. Raises BadInput where it has none."""
    if entry.is_p2p:
        return entry.p2p_seq_id
    numbers = (entry.collective_seq_id, entry.seq_id)
    number = next((number for number in numbers if number is not None), None)
    if number is None:
        raise refused("an entry in it has no sequence number")
    return number


def refused(why: str) -> BadInput:
    """The error for a file that is no dump, with the reason."""
    return BadInput(
        f"this is no flight recorder dump: {why}", help="A dump is what torch writes at a time-out, or answers to fr_trace_json."
    )
