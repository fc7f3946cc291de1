"""Flight recorder dumps pasted as JSON into a text, with what stands around them."""

import json
import re

from rankpatrol.analysis.told.recordings import diagnose_recordings
from rankpatrol.core.diagnosis import Diagnosis
from rankpatrol.core.errors import BadInput
from rankpatrol.core.rings import Recordings, Ring
from rankpatrol.formats.failures import last_failure
from rankpatrol.formats.rings import Calls, parse_ring

_OPENS = re.compile(r"^\s*\{", re.MULTILINE)
_RANK_LINE = re.compile(r"^\[?rank ?(\d+)\]?:\s?(.*)$", re.MULTILINE)
_EXPECTED = re.compile(r"expected ranks:?\s*\{?((?:\d+[,\s]*)+|\d+-\d+)")
_WORLD = re.compile(r"\bworld[_ ]size\W{1,3}(\d+)")


def looks_like_pasted_dumps(text: str) -> bool:
    """True where a JSON object with a recorder's keys begins a line."""
    return '"entries"' in text and ('"collective_seq_id"' in text or '"pg_config"' in text) and _OPENS.search(text) is not None


def diagnose_pasted_dumps(text: str) -> Diagnosis | None:
    """What the dumps say, and the exceptions that ranks' own lines beside them tell; None where no dump can be read."""
    calls, rings, rest = Calls(), dict[int, Ring](), text
    for rank, raw in _dumps(text):
        try:
            rings[rank] = parse_ring(raw.encode(), calls)
        except BadInput:
            continue
        rest = rest.replace(raw, "")
    if not rings:
        return None
    return diagnose_recordings(Recordings(calls=tuple(calls.known), rings=rings), errors=_errors(rest), world_size=_world_size(rest))


def _dumps(text: str) -> list[tuple[int, str]]:
    """Each object with entries, and its rank: its own word, else its place among them."""
    decoder = json.JSONDecoder()
    found: list[tuple[int, str]] = []
    at = 0
    while (opens := _OPENS.search(text, at)) is not None:
        start = opens.end() - 1
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        if isinstance(value, dict) and "entries" in value:
            rank = value.get("rank", len(found))
            found.append((rank if isinstance(rank, int) else len(found), text[start:at]))
    return found


def _errors(text: str) -> dict[int, str]:
    """The exception at the end of each rank's own lines, unless it only echoes another's."""
    lines: dict[int, list[str]] = {}
    for line in _RANK_LINE.finditer(text):
        lines.setdefault(int(line[1]), []).append(line[2])
    told = {rank: last_failure(("Traceback (most recent call last):", *said)) for rank, said in lines.items()}
    return {rank: failure.exception for rank, failure in told.items() if failure.exception is not None and not failure.echo}


def _world_size(text: str) -> int | None:
    if expected := _EXPECTED.search(text):
        return max(int(number) for number in re.findall(r"\d+", expected[1])) + 1
    world = _WORLD.search(text)
    return int(world[1]) if world else None
