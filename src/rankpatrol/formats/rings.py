"""A flight recorder's dump as a Ring: a thousand ranks' dumps fit into memory, since what they have in common is kept once."""

from array import array
from collections.abc import Iterable
from typing import Any

import msgspec

from rankpatrol.core.rings import Ring
from rankpatrol.core.snapshot import Collective, FlightRecording, GroupStatus
from rankpatrol.formats.alike import Alike
from rankpatrol.formats.flight_recorder import Dump, Entry, check_version, collectives, key_of, members_of, refused, status_of
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
            number = self._by_facts[facts] = self.number(next(iter(collectives([entry]))))
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
    return _ring(recording.version, None, calls.members(recording.members), recording.status, _columns(recording.entries, calls))


class _Tagged(msgspec.Struct):
    type: str = ""


def _from_json(data: bytes, calls: Calls) -> Ring:
    try:
        if msgspec.json.decode(data, type=_Tagged).type == "flight_recording":
            return ring_of(msgspec.json.decode(data, type=FlightRecording), calls)
        dump = msgspec.json.decode(data, type=Dump, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise refused(str(problem)) from problem
    check_version(dump.version)
    numbers, sequences = array("I"), array("q")
    for entry in dump.entries:
        numbers.append(calls.number_of(entry) if not entry.frames else calls.number(_collective(entry)))
        sequences.append(_sequence(entry))
    keys = {str(entry.pg_id): key_of(entry) for entry in dump.entries}
    return _ring(dump.version, dump.rank, calls.members(members_of(dump)), status_of(dump, keys), (numbers, sequences))


def _from_pickle(data: bytes, calls: Calls) -> Ring:
    try:
        value = value_with_alike(data, _number_of)
        if not isinstance(value, dict) or not isinstance(entries := value.pop("entries", []), list):
            raise refused("it holds no dict with a list of entries")
        dump = msgspec.convert(value, type=Dump, strict=False)
        check_version(dump.version)
        columns, keys = _Unfolded(calls), {}
        for item in entries:
            columns.add(item, keys)
    except (NotPlain, msgspec.ValidationError, OverflowError, RecursionError) as problem:
        raise refused(str(problem)) from problem
    return _ring(dump.version, dump.rank, calls.members(members_of(dump)), status_of(dump, keys), (columns.numbers, columns.sequences))


def _number_of(value: dict[object, object]) -> str | None:
    """Of an entry, the sequence that counts within its group; of any other dict none."""
    if "profiling_name" not in value:
        return None
    if value.get("is_p2p"):
        return "p2p_seq_id"
    return "collective_seq_id" if value.get("collective_seq_id") is not None else "seq_id"


class _Unfolded:
    """The columns of a list of entries, some of which stand together as Alike."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.numbers, self.sequences = array("I"), array("q")
        self._of_first: dict[int, int] = {}

    def add(self, item: object, keys: dict[str, str]) -> None:
        if isinstance(item, Alike):
            for which in set(item.which) - self._of_first.keys():
                self._of_first[which] = self.calls.number(_collective(_entry(item.firsts[which])))
            self.numbers.extend(map(self._of_first.__getitem__, item.which))
            self.sequences.extend(item.numbers)
            return
        entry = _entry(item)
        keys[str(entry.pg_id)] = key_of(entry)
        self.numbers.append(self.calls.number(_collective(entry)))
        self.sequences.append(_sequence(entry))


def _entry(item: object) -> Entry:
    return msgspec.convert(item, type=Entry, strict=False)


def _collective(entry: Entry) -> Collective:
    return next(iter(collectives([entry])))


def _sequence(entry: Entry) -> int:
    sequence = next(iter(collectives([entry]))).sequence if entry.is_p2p or entry.collective_seq_id is None else entry.collective_seq_id
    if not -_MOST_SEQUENCE < sequence < _MOST_SEQUENCE:
        raise refused("a sequence number in it is too large")
    return sequence


def _columns(entries: Iterable[Collective], calls: Calls) -> tuple["array[int]", "array[int]"]:
    numbers, sequences = array("I"), array("q")
    for entry in entries:
        numbers.append(calls.number(entry))
        sequences.append(entry.sequence)
    return numbers, sequences


def _ring(
    version: str, rank: int | None, members: dict[str, tuple[int, ...]], status: dict[str, GroupStatus], columns: tuple[Any, Any]
) -> Ring:
    return Ring(version=version, rank=rank, members=members, status=status, calls=columns[0], sequences=columns[1])


