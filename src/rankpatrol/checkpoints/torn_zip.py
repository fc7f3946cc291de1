"""Where a torch zip file without a table of contents ends, told from the headers and the pickle that lead it."""

from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.pickled_storages import MOST_PICKLE_BYTES, walk
from rankpatrol.checkpoints.zip_directory import CENTRAL, DESCRIPTOR, LOCAL, local_header
from rankpatrol.core.records import Missing, Record

_SMALL_RECORD_BYTES = 1 << 16


class TornEnd(Record, frozen=True):
    """The member that the file ends in, its bytes that are there and that should be, and how many storages are whole.

    None where the headers do not tell.
    """

    key: str | None = None
    there_bytes: int | None = None
    needed_bytes: int | None = None
    whole_storages: int = 0
    named_storages: int | None = None
    data_is_whole: bool = False


def where_torn(file: Readable) -> TornEnd:
    """Follow the members from byte 0 to the end of the file."""
    sizes: dict[str, int] | None = None
    whole = at = 0
    while (header := local_header(file, at)) is not None:
        name, start = header
        key = name.partition("/")[2]
        left = max(0, file.size_bytes - start)
        if key == "data.pkl":
            length, sizes = _pickle(file, start, left)
        else:
            length = sizes[key] if sizes and key in sizes else _small_record(file, start, left)
        if length is None or length > left:
            return TornEnd(key, left, length, whole, _count(sizes))
        whole += key.startswith("data/")
        following = _following(file, start, length)
        if following is None:
            return TornEnd(None, None, None, whole, _count(sizes))
        at = following
    finished = at > 0 and file.size_bytes - at >= len(CENTRAL) and file.read_at(at, len(CENTRAL)) == CENTRAL
    return TornEnd(None, None, None, whole, _count(sizes), finished)


def _count(sizes: dict[str, int] | None) -> int | None:
    return None if sizes is None else len(sizes)


def _pickle(file: Readable, start: int, left: int) -> tuple[int | None, dict[str, int] | None]:
    """The length of data.pkl and the size of each storage it names; None where it is cut or cannot be walked."""
    found = walk(file.read_at(start, min(left, MOST_PICKLE_BYTES))) if left else Missing("nothing is there")
    if isinstance(found, Missing):
        return None, None
    return found.length_bytes, {f"data/{storage.key}": storage.size_bytes for storage in found.storages}


def _small_record(file: Readable, start: int, left: int) -> int | None:
    """The length of a record such as `version`: torch leaves it out of the header and writes it behind the data."""
    length = file.read_at(start, min(left, _SMALL_RECORD_BYTES)).find(DESCRIPTOR) if left else -1
    return None if length < 0 else length


def _following(file: Readable, start: int, length: int) -> int | None:
    """Where the next header starts: a descriptor lies between, of 16 bytes, of 24 after more than 4 GiB, and none after nothing."""
    end = start + length
    for at in (end + 16, end + 24) if length else (end,):
        if at + 4 <= file.size_bytes and file.read_at(at, 4) in {LOCAL, CENTRAL}:
            return at
    return None
