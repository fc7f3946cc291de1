"""Listings as people paste them (data/told/listings.txt), and what they allow to say."""

from pathlib import Path

_FILE = Path(__file__).parents[1] / "data" / "told" / "listings.txt"


def _split(text: str) -> dict[str, tuple[str, tuple[str, str]]]:
    found = {}
    for part in text.split("=== ")[1:]:
        head, _, body = part.partition("\n")
        words, _, name = head.partition(": ")
        verdict, cause = words.split()
        found[name] = (body, (verdict, cause))
    return found


LISTINGS = _split(_FILE.read_text())
