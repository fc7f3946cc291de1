"""What torch.save wrote before torch 1.6, and still does on request: pickles in a row, then raw storages. It has no checksums.

See `_legacy_save` in torch/serialization.py: magic number, protocol version, facts of the machine, the object, the storages' keys; then
for each key the number of elements in eight bytes and the elements.
"""

from typing import Final

from rankpatrol.checkpoints.inert_pickle import CutShort, Read, read_pickle
from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.pickled_storages import MOST_PICKLE_BYTES, PickledStorage, walk
from rankpatrol.checkpoints.report import Judgement, Look, corrupt, cut_short, good, say_since, unknown
from rankpatrol.core.records import Missing, Record

NAME = "torch_legacy"
# torch.serialization.MAGIC_NUMBER as a pickle: LONG1 of 10 bytes, then STOP.
_MAGIC: Final = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_HEAD_BYTES: Final = 32
_COUNT_BYTES: Final = 8
_FIRST_READ_BYTES: Final = 1 << 20
_LEADING = ("magic number", "protocol version", "facts of the machine")


class _Pickles(Record, frozen=True):
    """What the leading pickles say: the storages by key, the order they follow in, and where they start."""

    storages: dict[str, PickledStorage]
    order: tuple[str, ...]
    end_bytes: int


def matches(file: Readable) -> bool:
    """Whether the file starts with the magic number's pickle."""
    head = file.read_at(0, min(_HEAD_BYTES, file.size_bytes))
    return head.startswith(b"\x80") and _MAGIC in head


def verify(file: Readable, look: Look) -> Judgement:
    """Every storage that the pickles name is there with its length, and nothing else is. Without checksums the content stays unknown."""
    since = say_since(look.now_unix_s - file.modified_unix_s)
    pickles = _pickles(file, since)
    if isinstance(pickles, Judgement):
        return pickles
    at = pickles.end_bytes
    for position, key in enumerate(pickles.order):
        needed = pickles.storages[key].size_bytes
        if at + _COUNT_BYTES + needed > file.size_bytes:
            there = max(0, file.size_bytes - at - _COUNT_BYTES)
            said = f"ends at byte {file.size_bytes} in storage {key}, with {there} of {needed} bytes of it there"
            whole = f" ({position} of {len(pickles.order)} storages are whole)"
            return cut_short(f"{said}{whole}; {since}", key=key, offset_bytes=file.size_bytes)
        wrong = _wrong_count(file, at, key, needed)
        if wrong is not None:
            return wrong
        at += _COUNT_BYTES + needed
    if at != file.size_bytes:
        return corrupt(f"holds {file.size_bytes - at} bytes more than its storages need, from byte {at} on", offset_bytes=at)
    return good(f"has its structure ok ({len(pickles.order)} storages, {at} bytes), content unknown (torch's old layout has no checksums)")


def _wrong_count(file: Readable, at: int, key: str, needed: int) -> Judgement | None:
    """The number of elements before a storage must fit its bytes, whatever their width."""
    count = int.from_bytes(file.read_at(at, _COUNT_BYTES), "little", signed=True)
    fits = count == needed == 0 or (count > 0 and needed % count == 0 and needed // count in {1, 2, 4, 8, 16})
    if fits:
        return None
    said = f"is damaged: storage {key} starts at byte {at} with {count} elements where the pickle gives it {needed} bytes"
    return corrupt(said, key=key, offset_bytes=at)


def _pickles(file: Readable, since: str) -> _Pickles | Judgement:
    """Read as much of the start as the pickles take: seldom more than the first megabyte."""
    head_bytes = min(file.size_bytes, _FIRST_READ_BYTES)
    while True:
        found = _pickles_in(file.read_at(0, head_bytes), since)
        most = min(file.size_bytes, MOST_PICKLE_BYTES)
        if isinstance(found, _Pickles) or head_bytes >= most:
            return found
        head_bytes = most


def _pickles_in(data: bytes, since: str) -> _Pickles | Judgement:
    at = 0
    for what in _LEADING:
        length = _walked(data, at, what, since)
        if isinstance(length, Judgement):
            return length
        at += length
    found = walk(data[at:])
    if isinstance(found, Missing):
        length = _walked(data, at, "object", since)
        if isinstance(length, Judgement):
            return length
        return unknown(f"is in torch's old layout, but its pickle does not tell which storages it needs: {found.reason}")
    at += found.length_bytes
    return _with_order(data, at, {storage.key: storage for storage in found.storages}, since)


def _with_order(data: bytes, at: int, storages: dict[str, PickledStorage], since: str) -> _Pickles | Judgement:
    length = _walked(data, at, "list of storages", since)
    if isinstance(length, Judgement):
        return length
    found = read_pickle(data[at:])
    keys = found.value if isinstance(found, Read) else None
    order = tuple(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else None
    if order is None or set(order) != set(storages) or len(order) != len(storages):
        return corrupt(f"is damaged: the list of storages at byte {at} is not that of its pickle", offset_bytes=at)
    return _Pickles(storages, order, at + length)


def _walked(data: bytes, at: int, what: str, since: str) -> int | Judgement:
    """The length of the pickle at a byte, or what is wrong there."""
    found = read_pickle(data[at:])
    if isinstance(found, CutShort):
        return cut_short(f"ends at byte {len(data)}, inside its {what}; {since}", offset_bytes=len(data))
    if isinstance(found, Missing):
        return corrupt(f"is damaged: its {what}, from byte {at} on, is no pickle ({found.reason})", offset_bytes=at)
    return found.length_bytes
