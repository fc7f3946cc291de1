"""The `.metadata` of a torch DCP checkpoint: which tensors there are, in which chunks, and where each chunk's bytes lie.

See torch/distributed/checkpoint/metadata.py and filesystem.py. It is a pickle, read as inert values.
"""

import functools
import itertools
import math
import re
from pathlib import Path
from typing import Final

from rankpatrol.checkpoints.inert_pickle import CutShort, Named, Read, Thing, look_up, pairs_of, read_pickle
from rankpatrol.checkpoints.opened import OpenedFile, Readable, identity_of
from rankpatrol.checkpoints.report import Judgement, Look, corrupt, cut_short, good, say_since, unknown
from rankpatrol.core.errors import PatrolError
from rankpatrol.core.records import Missing, Record

NAME = "dcp_metadata"
METADATA: Final = ".metadata"
# Saved without collectives (use_collectives=False), each rank describes its own shards.
OF_RANK: Final = re.compile(r"__(?P<rank>\d+)\.metadata")
_SHARD: Final = re.compile(r"__(?P<rank>\d+)_\d+\.distcp")
_MOST_METADATA_BYTES: Final = 512 << 20

Offsets = tuple[int, ...]


class Chunk(Record, frozen=True):
    """One piece of a tensor."""

    offsets: Offsets
    sizes: Offsets


class Entry(Record, frozen=True):
    """A tensor with its chunks, or (`sizes` None) any other object."""

    name: str
    sizes: Offsets | None
    chunks: tuple[Chunk, ...]


class Stored(Record, frozen=True):
    """Where one chunk (`offsets` None: a whole object) lies."""

    name: str
    offsets: Offsets | None
    file: str
    start_bytes: int
    length_bytes: int
    packed: bool = False  # by a transform, such as compression


class Plan(Record, frozen=True):
    """All that a `.metadata` says."""

    entries: tuple[Entry, ...]
    stored: tuple[Stored, ...]


def matches(file: Readable) -> bool:
    """By its name."""
    return is_metadata(file.path.name)


def is_metadata(name: str) -> bool:
    """Whether a file's name is that of the whole checkpoint's or one rank's description."""
    return name == METADATA or OF_RANK.fullmatch(name) is not None


def verify(file: Readable, look: Look) -> Judgement:
    """Whether it can be read to its end, and covers each tensor."""
    plan = _known_plan(file.path, file.identity) if isinstance(file, OpenedFile) else read_plan(file)
    if isinstance(plan, Missing):
        return unknown(f"cannot be followed: {plan.reason}")
    if isinstance(plan, Judgement):
        return cut_short(f"{plan.said}; {say_since(look.now_unix_s - file.modified_unix_s)}") if plan.verdict == "incomplete" else plan
    of_all = file.path.name == METADATA
    return (gap_in(plan) if of_all else None) or good(
        f"covers its {len(plan.entries)} entries with {len(plan.stored)} chunks, content unknown (it has no checksum of its own)"
    )


def read_plan(file: Readable) -> Plan | Judgement | Missing:
    """The plan, or what is wrong with it."""
    if file.size_bytes > _MOST_METADATA_BYTES:
        return Missing(f"it has {file.size_bytes} bytes, over the limit of {_MOST_METADATA_BYTES}")
    found = read_pickle(file.read_at(0, file.size_bytes))
    if isinstance(found, CutShort):
        return cut_short(f"ends at byte {file.size_bytes}, before its pickle does", offset_bytes=file.size_bytes)
    if isinstance(found, Missing):
        return corrupt(f"is damaged: {found.reason}")
    if found.length_bytes != file.size_bytes:
        at = found.length_bytes
        return corrupt(f"holds {file.size_bytes - at} bytes more than its pickle, from byte {at} on", offset_bytes=at)
    return _plan(found)


@functools.lru_cache(maxsize=4)
def _known_plan(path: Path, _: tuple[int, int, int, int]) -> Plan | Judgement | Missing:
    with OpenedFile(path) as file:
        return read_plan(file)


def plan_beside(path: Path) -> Plan | Missing:
    """The plan of the `.metadata` beside a shard, read once for all of them."""
    shard = _SHARD.fullmatch(path.name)
    metadata = path if is_metadata(path.name) else path.with_name(METADATA)
    if shard is not None and not metadata.exists() and (own := path.with_name(f"__{shard['rank']}{METADATA}")).exists():
        metadata = own
    try:
        plan = _known_plan(metadata, identity_of(metadata.stat()))
    except (OSError, PatrolError):
        return Missing(f"there is no {METADATA} beside it that can be read")
    return plan if isinstance(plan, Plan) else Missing(f"the {METADATA} beside it is damaged")


def gap_in(plan: Plan) -> Judgement | None:
    """What keeps the chunks from covering each tensor once, each with a place in a file."""
    places = {(stored.name, stored.offsets) for stored in plan.stored}
    named = {entry.name for entry in plan.entries}
    for stored in plan.stored:
        if stored.name not in named:
            return corrupt(f"is damaged: it places {stored.name!a}, which it does not describe", key=stored.name)
    for entry in plan.entries:
        if entry.sizes is None:
            if (entry.name, None) not in places:
                return corrupt(f"is damaged: it says of {entry.name!a} in no file where it lies", key=entry.name)
            continue
        problem = _uncovered(entry.sizes, entry.chunks)
        if problem:
            return corrupt(f"is damaged: the chunks of {entry.name!a} {problem}", key=entry.name)
        for chunk in entry.chunks:
            if (entry.name, chunk.offsets) not in places:
                return corrupt(f"is damaged: it does not place the chunk of {entry.name!a} at {list(chunk.offsets)}", key=entry.name)
    return None


def _uncovered(sizes: Offsets, chunks: tuple[Chunk, ...]) -> str:
    """Inside the tensor, disjoint, and as many elements as it has: then they cover it."""
    for chunk in chunks:
        if len(chunk.offsets) != len(sizes) or any(
            at + size > whole for at, size, whole in zip(chunk.offsets, chunk.sizes, sizes, strict=True)
        ):
            return f"reach beyond its size {list(sizes)}"
    covered = sum(math.prod(chunk.sizes) for chunk in chunks)
    if covered != math.prod(sizes):
        return f"hold {covered} elements of {math.prod(sizes)}"
    ordered = sorted((chunk for chunk in chunks if math.prod(chunk.sizes)), key=lambda chunk: chunk.offsets)
    if any(_overlap(one, other) for one, other in itertools.pairwise(ordered)):
        return "overlap"
    return ""


def _overlap(one: Chunk, other: Chunk) -> bool:
    pairs = zip(one.offsets, one.sizes, other.offsets, other.sizes, strict=True)
    return all(at < there + more and there < at + size for at, size, there, more in pairs)


def _plan(found: Read) -> Plan | Judgement:
    entries, stored = [], []
    for name, described in pairs_of(look_up(found.value, "state_dict_metadata")):
        entry = _entry(name, described)
        if entry is None:
            return corrupt(f"is damaged: it does not say what {str(name)[:100]!a} is")
        entries.append(entry)
    for index, place in pairs_of(look_up(found.value, "storage_data")):
        one = _stored(index, place)
        if one is None:
            return corrupt("is damaged: it places something without saying what or where")
        stored.append(one)
    if not entries and not (isinstance(found.value, Thing) and found.value.is_a("Metadata")):
        return corrupt("is no DCP metadata")
    return Plan(tuple(entries), tuple(stored))


def _entry(name: object, described: object) -> Entry | None:
    if not isinstance(name, str) or not isinstance(described, Thing):
        return None
    if described.is_a("BytesStorageMetadata"):
        return Entry(name, None, ())
    sizes, chunks = _whole_numbers(look_up(described, "size")), look_up(described, "chunks")
    if sizes is None or not isinstance(chunks, list):
        return None
    read = [_chunk(chunk) for chunk in chunks]
    return None if None in read else Entry(name, sizes, tuple(chunk for chunk in read if chunk is not None))


def _chunk(described: object) -> Chunk | None:
    offsets, sizes = _whole_numbers(look_up(described, "offsets")), _whole_numbers(look_up(described, "sizes"))
    return None if offsets is None or sizes is None else Chunk(offsets, sizes)


def _stored(index: object, place: object) -> Stored | None:
    name, offsets = look_up(index, "fqn"), look_up(index, "offset")
    file, start, length = (look_up(place, field) for field in ("relative_path", "offset", "length"))
    if not (isinstance(name, str) and isinstance(file, str) and isinstance(start, int) and isinstance(length, int)):
        return None
    if start < 0 or length < 0 or "/" in file or not file:
        return None
    packed = bool(look_up(place, "transform_descriptors"))
    return Stored(name, None if offsets is None else _whole_numbers(offsets), file, start, length, packed)


def _whole_numbers(value: object) -> Offsets | None:
    """A torch.Size, or a tuple."""
    if isinstance(value, Thing) and isinstance(value.of, Named) and value.of.name == "Size" and isinstance(value.args, tuple):
        value = value.args[0] if value.args else ()
    if isinstance(value, list | tuple) and all(isinstance(one, int) and one >= 0 for one in value):
        return tuple(one for one in value if isinstance(one, int))
    return None
