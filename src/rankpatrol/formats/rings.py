"""A flight recorder's dump as a Ring: a thousand ranks' dumps fit into memory, since what they have in common is kept once."""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from rankpatrol.core.rings import Ring
from rankpatrol.core.snapshot import Collective, FlightRecording, is_pending
from rankpatrol.formats.alike import Alike
from rankpatrol.formats.flight_recorder import Dump, Entry, check_version, collective, key_of, members_of, refused, sequence_of, status_of
from rankpatrol.formats.safe_pickle import MOST_BYTES, NotPlain, value_with_alike

_MOST_SEQUENCE = 1 << 62


class Calls:
    """The calls of many ranks, each kept once under a number, and the ranks of their groups likewise."""

    def __init__(self) -> None:
        self.known: list[Collective] = []
        self._numbers: dict[Collective, int] = {}
        self._by_facts: dict[Any, int] = {}
        self._members: dict[tuple[int, ...], tuple[int, ...]] = {}

    def number(self, entry: Collective) -> int:
        call = msgspec.structs.replace(entry, sequence=0)
        number = self._numbers.setdefault(call, len(self.known))
        if number == len(self.known):
            self.known.append(call)
        return number

    def number_of(self, entry: Entry) -> int:
        """The same for an entry without frames, of which most are known already."""
        facts = (
            entry.pg_id, entry.process_group, entry.profiling_name, entry.state, entry.retired, entry.is_p2p, entry.timeout_ms,
            entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes,
        )  # fmt: skip
        number = self._by_facts.get(facts)
        if number is None:
            number = self._by_facts[facts] = self.number(collective(entry))
        return number

    def members(self, told: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {name: self._members.setdefault(ranks, ranks) for name, ranks in told.items()}


def parse_ring(data: bytes, calls: Calls) -> Ring:
    """The ring in a dump, JSON or pickle, or in a bundle's own `flight_recorder.json`. Nothing in it is ever executed.

    Raises BadInput for anything else, with the reason.
    """
    if len(data) > MOST_BYTES:
        raise refused(f"it has more than {MOST_BYTES >> 20} MiB")
    if data[:64].lstrip()[:1] == b"{":
        return _from_json(data, calls)
    return _from_pickle(data, calls)


def ring_of(recording: FlightRecording, calls: Calls) -> Ring:
    """The same of a recording that a patrol has taken."""
    numbers, sequences = array("I"), array("q")
    for entry in recording.entries:
        numbers.append(calls.number(entry))
        sequences.append(_bounded(entry.sequence))
    return Ring(
        version=recording.version,
        rank=None,
        members=calls.members(recording.members),
        status=recording.status,
        pending_since_unix_s=None,
        calls=numbers,
        sequences=sequences,
    )


class _Tagged(msgspec.Struct):
    type: str = ""


def _from_json(data: bytes, calls: Calls) -> Ring:
    try:
        if msgspec.json.decode(data, type=_Tagged).type == "flight_recording":
            return ring_of(msgspec.json.decode(data, type=FlightRecording), calls)
        dump = msgspec.json.decode(data, type=Dump, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise refused(str(problem)) from problem
    return _ring(dump, dump.entries, calls)


def _from_pickle(data: bytes, calls: Calls) -> Ring:
    try:
        value = value_with_alike(data, _number_of)
        if not isinstance(value, dict) or not isinstance(entries := value.pop("entries", []), list):
            raise refused("it holds no dict with a list of entries")
        dump = msgspec.convert(value, type=Dump, strict=False)
        return _ring(dump, (item if isinstance(item, Alike) else _entry(item) for item in entries), calls)
    except (NotPlain, msgspec.ValidationError, RecursionError) as problem:
        raise refused(str(problem)) from problem


def _number_of(value: dict[object, object]) -> str | None:
    """Of an entry, the sequence that counts within its group; of any other dict none."""
    if "profiling_name" not in value:
        return None
    if value.get("is_p2p"):
        return "p2p_seq_id"
    return "collective_seq_id" if value.get("collective_seq_id") is not None else "seq_id"


def _ring(dump: Dump, entries: Iterable[Entry | Alike], calls: Calls) -> Ring:
    check_version(dump.version)
    columns = _Columns(calls)
    for each in entries:
        columns.add(each)
    return Ring(
        version=dump.version,
        rank=dump.rank,
        members=calls.members(members_of(dump)),
        status=status_of(dump, columns.keys),
        pending_since_unix_s=columns.pending_since_unix_s,
        calls=columns.numbers,
        sequences=columns.sequences,
    )


class _Columns:
    """The columns of a list of entries, some of which stand together as Alike."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.numbers, self.sequences = array("I"), array("q")
        self.keys: dict[str, str] = {}
        self.pending_since_unix_s: float | None = None
        self._of_first: dict[int, int] = {}

    def add(self, each: Entry | Alike) -> None:
        if isinstance(each, Alike):
            for which in set(each.which) - self._of_first.keys():
                self._of_first[which] = self.calls.number(collective(_entry(each.firsts[which])))
            self.numbers.extend(map(self._of_first.__getitem__, each.which))
            self.sequences.extend(each.numbers)
            return
        self.keys.setdefault(str(each.pg_id), key_of(each))
        number = self.calls.number(collective(each)) if each.frames else self.calls.number_of(each)
        self.numbers.append(number)
        self.sequences.append(_bounded(sequence_of(each)))
        # The first of those that are alike is the oldest of them, so that the times that were stepped over are not missed.
        if each.time_created_ns and is_pending(self.calls.known[number]):
            since_s = each.time_created_ns / 1e9
            self.pending_since_unix_s = min(since_s, self.pending_since_unix_s or since_s)


def _entry(item: object) -> Entry:
    return msgspec.convert(item, type=Entry, strict=False)


def _bounded(sequence: int) -> int:
    if abs(sequence) > _MOST_SEQUENCE:
        raise refused("a sequence number in it is too large")
    return sequence
