"""A zip file's table of contents, by its own numbers alone. See APPNOTE.TXT, section 4.3, at pkware.com.

The standard library's zipfile forgives bytes before and gaps inside an archive; a torn checkpoint must not be forgiven.
"""

import struct

from rankpatrol.checkpoints.opened import Readable
from rankpatrol.core.records import Record

LOCAL = b"PK\x03\x04"
DESCRIPTOR = b"PK\x07\x08"
CENTRAL = b"PK\x01\x02"
LOCAL_BYTES = 30

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCATOR64_SIGNATURE = b"PK\x06\x07"
# Flags: encrypted, a patch, strongly encrypted, masked headers.
_ALTERED = 0x1 | 0x20 | 0x40 | 0x2000
_DIRECTORY = 0x10
_LONGEST_COMMENT_BYTES = 65535
_MOST_DIRECTORY_BYTES = 256 << 20


class Member(Record, frozen=True):
    """One entry of the table of contents."""

    name: str
    crc: int
    size_bytes: int
    packed_bytes: int
    header_offset_bytes: int
    plain: bool
    is_directory: bool


class Directory(Record, frozen=True):
    """The whole table of contents, where it starts, and where the archive ends."""

    members: tuple[Member, ...]
    start_bytes: int
    end_bytes: int


class Torn(Record, frozen=True):
    """The file has no end record: it was never finished, or cut."""


class Damaged(Record, frozen=True):
    """Something is there, but its numbers contradict each other."""

    reason: str
    offset_bytes: int


def read_directory(file: Readable) -> Directory | Torn | Damaged:
    """The table of contents of a zip file that starts at byte 0."""
    tail_start = max(0, file.size_bytes - _LONGEST_COMMENT_BYTES - _END.size)
    tail = file.read_at(tail_start, file.size_bytes - tail_start)
    damage: Torn | Damaged = Torn()
    position = len(tail)
    # A tensor may hold a zip file of its own: only a record that points to a table right before itself is this file's.
    while (position := tail.rfind(b"PK\x05\x06", 0, position)) >= 0:
        if len(tail) - position < _END.size:
            continue
        found = _from_end_record(file, tail[position : position + _END.size], tail_start + position)
        if isinstance(found, Directory):
            return found
        if isinstance(damage, Torn):
            damage = found
    return damage


def _from_end_record(file: Readable, record: bytes, position: int) -> Directory | Damaged:
    _, disk, table_disk, here, count, length, start, _ = _END.unpack(record)
    if disk or table_disk or here != count:
        return Damaged(f"the end record at byte {position} speaks of other volumes", position)
    table_end = position
    # torch writes the zip64 records always; where they are, readers follow them.
    has_wide = position >= _LOCATOR64.size and file.read_at(position - _LOCATOR64.size, 4) == _LOCATOR64_SIGNATURE
    if has_wide or 0xFFFFFFFF in {length, start} or count == 0xFFFF:
        wide = _wide_end_record(file, position)
        if isinstance(wide, Damaged):
            return wide
        count, length, start, table_end = wide
    if length > _MOST_DIRECTORY_BYTES or start + length != table_end or table_end > position:
        return Damaged(
            f"the end record at byte {position} points to a table at bytes {start} to {start + length}, which is not there", position
        )
    return _entries(file, start, length, count, position + _END.size)


def _wide_end_record(file: Readable, position: int) -> tuple[int, int, int, int] | Damaged:
    """Count, length, start and end of the table from the zip64 end record, found through its locator."""
    at = position - _LOCATOR64.size
    if at < 0:
        return Damaged("the zip64 locator is missing", position)
    signature, disk, wide_at, volumes = _LOCATOR64.unpack(file.read_at(at, _LOCATOR64.size))
    if signature != _LOCATOR64_SIGNATURE or disk or volumes != 1 or wide_at > at - _END64.size:
        return Damaged(f"the zip64 locator at byte {at} is damaged", at)
    signature, _, _, _, disk, table_disk, here, count, length, start = _END64.unpack(file.read_at(wide_at, _END64.size))
    if signature != b"PK\x06\x06" or disk or table_disk or here != count:
        return Damaged(f"the zip64 end record at byte {wide_at} is damaged", wide_at)
    return count, length, start, wide_at


def _entries(file: Readable, start: int, length: int, count: int, end: int) -> Directory | Damaged:
    table = file.read_at(start, length)
    members: list[Member] = []
    at = 0
    while at < length:
        if length - at < _ENTRY.size or table[at : at + 4] != CENTRAL:
            return Damaged(f"the table of contents is damaged at byte {start + at}, entry {len(members)} of {count}", start + at)
        member, at = _entry(table, at)
        if at > length or member is None:
            return Damaged(f"the table of contents is damaged before byte {start + at}, entry {len(members)} of {count}", start + at)
        members.append(member)
    if len(members) != count:
        return Damaged(f"the table of contents lists {len(members)} entries, its end record {count}", start)
    return Directory(tuple(members), start, end)


def _entry(table: bytes, at: int) -> tuple[Member | None, int]:
    """One entry, or None where its zip64 numbers are missing; and where the next one starts."""
    _, _, _, flags, method, _, _, crc, packed, size, name_length, extra_length, comment_length, disk, _, attributes, offset = (
        _ENTRY.unpack_from(table, at)
    )
    name_at = at + _ENTRY.size
    extra_at = name_at + name_length
    after = extra_at + extra_length + comment_length
    name = table[name_at:extra_at].decode("utf-8", "backslashreplace")
    numbers = _widened([size, packed, offset], table[extra_at : extra_at + extra_length])
    if numbers is None or disk:
        return None, after
    size, packed, offset = numbers
    return Member(name, crc, size, packed, offset, method == 0 and not flags & _ALTERED, bool(attributes & _DIRECTORY)), after


def _widened(narrow: list[int], extra: bytes) -> list[int] | None:
    """The numbers of an entry, with each 0xFFFFFFFF replaced from the zip64 extra field; None where that is too short."""
    wide = _extra_field(extra, 1)
    taken = 0
    numbers = []
    for number in narrow:
        if number != 0xFFFFFFFF:
            numbers.append(number)
            continue
        if len(wide) < taken + 8:
            return None
        numbers.append(int.from_bytes(wide[taken : taken + 8], "little"))
        taken += 8
    return numbers


def _extra_field(extra: bytes, wanted: int) -> bytes:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == wanted:
            return extra[at + 4 : at + 4 + length]
        at += 4 + length
    return b""


def data_offset(file: Readable, member: Member, limit_bytes: int) -> int | Damaged:
    """Where a member's bytes start: its local header says so, since torch pads there to align each storage."""
    at = member.header_offset_bytes
    if at + LOCAL_BYTES > limit_bytes:
        return Damaged(f"{member.name} should start at byte {at}, beyond the last data at byte {limit_bytes}", at)
    header = local_header(file, at)
    if header is None:
        return Damaged(f"there is no header at byte {at}, where {member.name} should start", at)
    name, start = header
    if name != member.name:
        return Damaged(f"the header at byte {at} names {name!a} where the table of contents names {member.name!a}", at)
    if start + member.size_bytes > limit_bytes:
        return Damaged(f"{member.name} should hold {member.size_bytes} bytes, but only {max(0, limit_bytes - start)} are there", start)
    return start


def local_header(file: Readable, at: int) -> tuple[str, int] | None:
    """A local header's name and the byte after it; None where there is no whole header. The data after it may lie beyond the end."""
    if at + LOCAL_BYTES > file.size_bytes:
        return None
    fixed = file.read_at(at, LOCAL_BYTES)
    if fixed[:4] != LOCAL:
        return None
    name_length, extra_length = struct.unpack_from("<HH", fixed, 26)
    if at + LOCAL_BYTES + name_length > file.size_bytes:
        return None
    name = file.read_at(at + LOCAL_BYTES, name_length).decode("utf-8", "backslashreplace")
    return name, at + LOCAL_BYTES + name_length + extra_length
