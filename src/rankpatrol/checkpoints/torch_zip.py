"""What torch.save has written since torch 1.6: a zip file with data.pkl and one uncompressed member for each storage."""

from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.pickled_storages import MOST_PICKLE_BYTES, PickledStorage, walk
from rankpatrol.checkpoints.report import (
    CheckpointCause,
    CheckpointVerdict,
    Judgement,
    Look,
    corrupt,
    cut_short,
    good,
    lacking,
    say_since,
    unknown,
)
from rankpatrol.checkpoints.torn_zip import TornEnd, where_torn
from rankpatrol.checkpoints.zip_directory import LOCAL, Damaged, Directory, Member, Torn, data_offset, read_directory
from rankpatrol.core.records import Missing, Record

NAME = "torch_zip"


class _Placed(Record, frozen=True):
    """A member, by its name without the archive's, and where its bytes start."""

    key: str
    member: Member
    start_bytes: int


def matches(file: Readable) -> bool:
    """Whether the file starts as a zip file, or ends as one (its start may be damaged)."""
    head = file.read_at(0, min(file.size_bytes, len(LOCAL)))
    return (head != b"" and LOCAL.startswith(head)) or isinstance(read_directory(file), Directory)


def verify(file: Readable, look: Look) -> Judgement:
    """Structure first, since it is cheap: the table of contents, each storage's place and length; then every byte against its checksum."""
    match read_directory(file):
        case Torn():
            return _torn(file, look.now_unix_s)
        case Damaged(reason, at):
            return corrupt(f"cannot be loaded: {reason}", offset_bytes=at)
        case Directory() as directory:
            placed = _place(file, directory)
            return placed if isinstance(placed, Judgement) else _members(file, placed, look)


def _members(file: Readable, placed: dict[str, _Placed], look: Look) -> Judgement:
    if "data.pkl" not in placed:
        return _no_pickle(placed)
    storages = _storages(file, placed["data.pkl"])
    if isinstance(storages, Judgement):
        return storages
    if isinstance(storages, Missing):
        content = _content(file, placed, look)
        if content.verdict is not CheckpointVerdict.OK:
            return content
        return unknown(f"is a whole zip file, but its data.pkl does not tell which storages it needs: {storages.reason}", key="data.pkl")
    return _misfit(storages, placed) or _content(file, placed, look)


def _torn(file: Readable, now_unix_s: float) -> Judgement:
    why = say_since(now_unix_s - file.modified_unix_s)
    end = where_torn(file)
    said = f"ends at byte {file.size_bytes}{_where(end)}, without its table of contents; {why}"
    return cut_short(said, key=end.key, offset_bytes=file.size_bytes)


def _where(end: TornEnd) -> str:
    if end.data_is_whole:
        return f" behind all {end.whole_storages} storages"
    place = ""
    if end.key is not None:
        needed = "" if end.needed_bytes is None else f" of {end.needed_bytes}"
        place = f" in {end.key!a}, with {end.there_bytes}{needed} bytes of it there"
    counted = "" if end.named_storages is None else f" ({end.whole_storages} of {end.named_storages} storages are whole)"
    return place + counted


def _place(file: Readable, directory: Directory) -> dict[str, _Placed] | Judgement:
    """Every member by its key, checked against its own header."""
    archive = directory.members[0].name.partition("/")[0] if directory.members else ""
    placed: dict[str, _Placed] = {}
    for member in directory.members:
        key = member.name.removeprefix(f"{archive}/")
        if not member.plain:
            return unknown(f"holds {member.name!a} compressed or encrypted, as torch.save never writes it", key=key)
        if member.is_directory and not key.endswith("/"):
            # torch's reader then returns success, and a buffer that it never filled.
            return corrupt(f"is damaged: its table of contents takes {key!a} for a directory", key=key)
        if member.packed_bytes != member.size_bytes:
            said = f"is damaged: its table of contents gives {key!a} two lengths, {member.packed_bytes} and {member.size_bytes} bytes"
            return corrupt(said, key=key, offset_bytes=member.header_offset_bytes)
        start = data_offset(file, member, directory.start_bytes)
        if isinstance(start, Damaged):
            return corrupt(f"is damaged: {start.reason}", key=key, offset_bytes=start.offset_bytes)
        if key in placed:
            return corrupt(f"holds two members named {member.name!a}", key=key, offset_bytes=member.header_offset_bytes)
        placed[key] = _Placed(key, member, start)
    return placed


def _no_pickle(placed: dict[str, _Placed]) -> Judgement:
    if any(key.startswith("data/") for key in placed):
        said = f"has no data.pkl beside its {len(placed)} members, so nothing says what they are"
        return lacking(said, key="data.pkl")
    return unknown(f"is a zip file with {len(placed)} members and no data.pkl: not written by torch.save")


def _storages(file: Readable, pickle: _Placed) -> tuple[PickledStorage, ...] | Missing | Judgement:
    member = pickle.member
    if member.size_bytes > MOST_PICKLE_BYTES:
        return Missing(f"it has {member.size_bytes} bytes, over the limit of {MOST_PICKLE_BYTES}")
    if member.crc not in {0, file.crc32_at(pickle.start_bytes, member.size_bytes)}:
        return _wrong_checksum([pickle])
    found = walk(file.read_at(pickle.start_bytes, member.size_bytes))
    return found if isinstance(found, Missing) else found.storages


def _misfit(storages: tuple[PickledStorage, ...], placed: dict[str, _Placed]) -> Judgement | None:
    """The storages that are not there, or not as long as data.pkl needs them."""
    absent = [storage for storage in storages if f"data/{storage.key}" not in placed]
    if absent:
        first = absent[0]
        said = f"lacks {len(absent)} of its {len(storages)} storages, the first is data/{first.key} ({first.size_bytes} bytes)"
        return lacking(said, key=f"data/{first.key}")
    for storage in storages:
        there = placed[f"data/{storage.key}"]
        if there.member.size_bytes != storage.size_bytes:
            short = there.member.size_bytes < storage.size_bytes
            said = f"holds {there.member.size_bytes} bytes in {there.key} where data.pkl needs {storage.size_bytes}"
            return corrupt(said, key=there.key, offset_bytes=there.start_bytes, cut=short)
    return None


def _content(file: Readable, by_key: dict[str, _Placed], look: Look) -> Judgement:
    """Every member against its checksum. A checksum of 0 is how torch writes that there is none."""
    placed = list(by_key.values())
    size = sum(place.member.size_bytes for place in placed)
    if not look.content:
        return good(f"has its structure ok ({len(placed)} members, {size} bytes); its content was not read")
    filled = [place for place in placed if place.member.size_bytes]
    wrong = [place for place in placed if file.crc32_at(place.start_bytes, place.member.size_bytes) != place.member.crc]
    if not wrong:
        return good(f"is whole: {len(placed)} members, {size} bytes, every checksum right", content_verified=True)
    if any(place.member.crc for place in wrong):
        return _wrong_checksum([place for place in wrong if place.member.crc])
    if len(wrong) == len(filled):
        # torch.serialization.set_crc32_options(False)
        return good(f"has its structure ok ({len(placed)} members, {size} bytes), content unknown (saved without checksums)")
    if {place.key for place in wrong} == {place.key for place in filled if place.key.startswith("data/")}:
        return _skipped_data(file, wrong)
    return _wrong_checksum(wrong)


def _skipped_data(file: Readable, storages: list[_Placed]) -> Judgement:
    """A frame from torch.serialization.skip_data, which another writer fills in, or not."""
    if all(file.is_zero_at(place.start_bytes, place.member.size_bytes) for place in storages):
        said = f"was saved without its data (skip_data), and all its {len(storages)} storages hold zeros alone: nothing was filled in"
        return Judgement(verdict=CheckpointVerdict.INCOMPLETE, cause=CheckpointCause.UNKNOWN, said=said, key=storages[0].key)
    return good(f"has its structure ok, content unknown ({len(storages)} storages were filled in without checksums, after skip_data)")


def _wrong_checksum(wrong: list[_Placed]) -> Judgement:
    first = min(wrong, key=lambda place: place.start_bytes)
    end = first.start_bytes + first.member.size_bytes
    more = "" if len(wrong) == 1 else f", and so do {len(wrong) - 1} more members"
    return corrupt(
        f"has wrong bytes in {first.key!a} (bytes {first.start_bytes} to {end}): they miss their checksum{more}",
        key=first.key,
        offset_bytes=first.start_bytes,
    )
