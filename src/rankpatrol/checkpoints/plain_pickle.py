"""A pickle that is no torch file, such as a sampler's or random states'. It has no checksum, and is never loaded."""

from rankpatrol.checkpoints.inert_pickle import CutShort, read_pickle
from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.report import Judgement, Look, corrupt, cut_short, good, say_since, unknown
from rankpatrol.core.records import Missing

NAME = "pickle"
_MOST_BYTES = 256 << 20


def matches(file: Readable) -> bool:
    """By its name, and how pickles since protocol 2 start."""
    return file.path.suffix in {".pkl", ".pickle"} and file.read_at(0, min(1, file.size_bytes)) == b"\x80"


def verify(file: Readable, look: Look) -> Judgement:
    """Whether it can be followed to its end, which must be the file's."""
    if file.size_bytes > _MOST_BYTES:
        return unknown(f"has {file.size_bytes} bytes, over the limit of {_MOST_BYTES} for a pickle")
    found = read_pickle(file.read_at(0, file.size_bytes))
    if isinstance(found, CutShort):
        since = say_since(look.now_unix_s - file.modified_unix_s)
        return cut_short(f"ends at byte {file.size_bytes}, before its pickle does; {since}", offset_bytes=file.size_bytes)
    if isinstance(found, Missing):
        return corrupt(f"is damaged: {found.reason}")
    if found.length_bytes != file.size_bytes:
        return unknown(f"holds {file.size_bytes - found.length_bytes} bytes behind its pickle")
    return good(f"is a pickle to its last byte ({file.size_bytes}), content unknown (it has no checksum)")
