"""A JSON file of a checkpoint: trainer states, configurations, indexes of shards. It has no checksum."""

import json

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
        text = data.decode()
    except UnicodeDecodeError as problem:
        if problem.end >= len(data) and problem.reason == "unexpected end of data":
            return cut_short(f"ends at byte {len(data)}, inside a character; {since}", offset_bytes=len(data))
        return corrupt(f"is damaged: it is no text at byte {problem.start}", offset_bytes=problem.start)
    try:
        # Python's own reader: trainers write NaN for a loss, which stricter ones refuse.
        json.loads(text)
    except json.JSONDecodeError as problem:
        at = len(text[: problem.pos].encode())
        if not text[problem.pos :].strip() or problem.msg.startswith("Unterminated string"):
            return cut_short(f"ends at byte {len(data)}, before its JSON does; {since}", offset_bytes=len(data))
        return corrupt(f"is damaged: it is no JSON at byte {at}", offset_bytes=at)
    except (RecursionError, ValueError):
        return unknown("holds JSON that is too deep or too long to be read")
    return good(f"is readable JSON ({len(data)} bytes), content unknown (JSON has no checksums)")
