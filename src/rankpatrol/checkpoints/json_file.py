"""A JSON file of a checkpoint: trainer states, configurations, indexes of shards. It has no checksum."""

import msgspec

from rankpatrol.checkpoints.opened import Readable
from rankpatrol.checkpoints.report import Judgement, Look, corrupt, cut_short, good, say_since, unknown

NAME = "json"
MOST_JSON_BYTES = 128 << 20


def matches(file: Readable) -> bool:
    """By its name alone: nothing marks the content."""
    return file.path.suffix == ".json"


def verify(file: Readable, look: Look) -> Judgement:
    """Whether it can be read to its end."""
    since = say_since(look.now_unix_s - file.modified_unix_s)
    if file.size_bytes > MOST_JSON_BYTES:
        return unknown(f"has {file.size_bytes} bytes, over the limit of {MOST_JSON_BYTES} for JSON")
    data = file.read_at(0, file.size_bytes)
    if not data.strip(b"\0 \n"):
        return cut_short(f"holds nothing in its {len(data)} bytes; {since}", offset_bytes=0)
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError as problem:
        if "truncated" in str(problem):
            return cut_short(f"ends at byte {len(data)}, before its JSON does; {since}", offset_bytes=len(data))
        return corrupt(f"is damaged: it is no JSON ({problem})")
    except UnicodeDecodeError as problem:
        return corrupt(f"is damaged: it is no text at byte {problem.start}", offset_bytes=problem.start)
    return good(f"is readable JSON ({len(data)} bytes), content unknown (JSON has no checksums)")
