"""The tables of log lines, one module a source. A new line is a new row."""

import re

from rankpatrol.formats.log_tables import devices, launchers, nccl, observer, phases, python, schedulers, torch
from rankpatrol.formats.log_tables.row import Row

__all__ = ["REGEXES", "ROWS", "Row", "hinted"]

# In order: the first row that fits a line speaks for it, so the exact ones stand before the general ones.
ROWS: tuple[Row, ...] = (
    *torch.ROWS,
    *nccl.ROWS,
    *schedulers.ROWS,
    *launchers.ROWS,
    *devices.ROWS,
    *python.ROWS,
    *observer.ROWS,
    *phases.ROWS,
)

REGEXES = tuple(re.compile(row.regex, re.IGNORECASE if row.ignore_case else 0) for row in ROWS)


def _index() -> dict[str, tuple[int, ...]]:
    places: dict[str, list[int]] = {}
    for at, row in enumerate(ROWS):
        for hint in row.hints:
            places.setdefault(hint, []).append(at)
    return {hint: tuple(found) for hint, found in places.items()}


_DIGITS = {ord(digit): None for digit in "0123456789"}
_BY_HINT = _index()
_WITHOUT_DIGITS = tuple((hint, rows) for hint, rows in _BY_HINT.items() if not any(sign.isdigit() for sign in hint))
_WITH_DIGITS = tuple((hint, rows) for hint, rows in _BY_HINT.items() if any(sign.isdigit() for sign in hint))
_MOST_REMEMBERED = 20_000
_remembered: dict[str, tuple[int, ...]] = {}


def hinted(text: str) -> tuple[int, ...]:
    """The places in ROWS whose hints a line holds, in order. Lines that differ in digits alone are asked once."""
    low = text.lower().replace("_", " ")
    shape = low.translate(_DIGITS)
    known = _remembered.get(shape)
    if known is None:
        known = tuple(sorted({at for hint, rows in _WITHOUT_DIGITS if hint in shape or hint in low for at in rows}))
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[shape] = known
    exact = {at for hint, rows in _WITH_DIGITS if hint in low for at in rows}
    return tuple(sorted(exact.union(known))) if exact else known
